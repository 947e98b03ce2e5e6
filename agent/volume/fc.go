package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

func fcOf(s Source) *fcVolume {
	if s.Persistent == nil {
		return (*fcVolume)(s.Volume.FC)
	}
	return (*fcVolume)(s.Persistent.Spec.FC)
}

// fcVolume is a disk of a Fibre Channel network, by the names of its targets' ports and
// its number, or by its own name.
type fcVolume corev1.FCVolumeSource

// disk implements what diskOf asks, with upstream's directory.
func (v *fcVolume) disk() *diskSource {
	names, suffix := v.WWIDs, ""
	if len(v.TargetWWNs) > 0 {
		names, suffix = v.TargetWWNs, "-lun-"+strconv.Itoa(int(v.lun()))
	}
	sorted := slices.Clone(names)
	for i := range sorted {
		sorted[i] = strings.ToLower(sorted[i])
	}
	slices.Sort(sorted)
	return &diskSource{
		plugin:   "fc",
		key:      "fc^" + strings.Join(slices.Compact(sorted), "-") + suffix,
		dir:      strings.Join(names, "-") + suffix,
		fsType:   cmp.Or(v.FSType, "ext4"),
		readOnly: v.ReadOnly,
		invalid:  v.invalid(),
	}
}

func (v *fcVolume) lun() int32 {
	if v.Lun == nil {
		return 0
	}
	return *v.Lun
}

// invalid tells what is wrong with the source: its names become names of files.
func (v *fcVolume) invalid() error {
	for _, name := range v.TargetWWNs {
		if name == "" || len(name) > 32 || strings.Trim(name, "0123456789abcdefABCDEF") != "" {
			return fmt.Errorf("fc.targetWWNs: %q is no World Wide Name, which has hexadecimal digits", name)
		}
	}
	for _, name := range v.WWIDs {
		if !safeName(strings.ReplaceAll(name, " ", "_")) {
			return fmt.Errorf("fc.wwids: %q has characters that no name of a disk has", name)
		}
	}
	if len(v.TargetWWNs)+len(v.WWIDs) == 0 {
		return errors.New("fc needs targetWWNs with a lun, or wwids")
	}
	return nil
}

// fcFinder finds disks that the node's adapters see.
type fcFinder struct{ diskNode }

// find implements finder.
func (f fcFinder) find(ctx context.Context, v *Volume) (string, error) {
	source := fcOf(v.Source)
	list := func() []string { return f.disks(source) }
	if len(list()) == 0 {
		if err := f.rescan(source); err != nil {
			return "", err
		}
		look := func() bool { return len(list()) > 0 }
		if err := f.await(ctx, f.wait, look); err != nil {
			return "", errors.Join(fmt.Errorf("fc: this node sees no disk %s: the storage has to show it to the "+
				"node's adapters, and the switches have to let them reach it", v.name()), f.missing(source), ctx.Err())
		}
	}
	return f.choose(ctx, list, len(source.TargetWWNs) > 1 || len(list()) > 1)
}

// missing tells which names were looked for.
func (f fcFinder) missing(v *fcVolume) error {
	if len(v.TargetWWNs) > 0 {
		return fmt.Errorf("no %s names the lun %d of %s", filepath.Join(f.dev, "disk/by-path/*-fc-0xWWN-lun-N"),
			v.lun(), strings.Join(v.TargetWWNs, ", "))
	}
	return fmt.Errorf("no %s names %s", filepath.Join(f.dev, "disk/by-id/scsi-WWID"), strings.Join(v.WWIDs, ", "))
}

// lose implements finder.
func (f fcFinder) lose(ctx context.Context, v *Volume) error {
	return f.remove(ctx, f.disks(fcOf(v.Source)))
}

// disks are the kernel's names of the disks that the links of udev show for the volume.
func (f fcFinder) disks(v *fcVolume) (names []string) {
	add := func(link string) {
		to, err := os.Readlink(link)
		if name := filepath.Base(to); err == nil && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(v.TargetWWNs) == 0 {
		for _, id := range v.WWIDs {
			add(filepath.Join(f.dev, "disk/by-id", "scsi-"+strings.ReplaceAll(id, " ", "_")))
		}
		return names
	}
	links, err := os.ReadDir(filepath.Join(f.dev, "disk/by-path"))
	if err != nil {
		return nil
	}
	for _, link := range links {
		if v.shownBy(link.Name()) {
			add(filepath.Join(f.dev, "disk/by-path", link.Name()))
		}
	}
	return names
}

// shownBy tells whether a link is to the volume: [pci-ADDRESS-]fc-0xWWN-lun-N.
func (v *fcVolume) shownBy(link string) bool {
	at := strings.LastIndex(link, "fc-0x")
	if at < 0 || at > 0 && (!strings.HasPrefix(link, "pci-") || link[at-1] != '-') {
		return false
	}
	wwn, lun, ok := strings.Cut(link[at+len("fc-0x"):], "-lun-")
	return ok && lun == strconv.Itoa(int(v.lun())) &&
		slices.ContainsFunc(v.TargetWWNs, func(w string) bool { return strings.EqualFold(w, wwn) })
}

// rescan has the adapters look for the disk.
func (f fcFinder) rescan(v *fcVolume) error {
	hosts, err := os.ReadDir(filepath.Join(f.sys, "class/fc_host"))
	if err != nil || len(hosts) == 0 {
		return errors.New("fc: this node has no Fibre Channel adapter, or its kernel lacks the driver: " +
			"/sys/class/fc_host is empty")
	}
	what := "- - -"
	if v.Lun != nil && len(v.TargetWWNs) > 0 {
		what = fmt.Sprintf("- - %d", *v.Lun)
	}
	for _, h := range hosts {
		if err := f.write(filepath.Join("class/scsi_host", h.Name(), "scan"), what); err != nil {
			return err
		}
	}
	return nil
}
