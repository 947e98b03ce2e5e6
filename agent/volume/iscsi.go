package volume

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// iscsiVolume is a disk of an iSCSI target, as a pod or a PersistentVolume names it.
type iscsiVolume struct {
	target     string // its name, an iqn
	portals    []string
	lun        int32
	base       string // the interface of iscsiadm that the volume asks for
	initiator  string // the name by which the node logs in; "": its own
	name       string // the volume's
	fsType     string
	readOnly   bool
	chap       bool // for the session
	chapSearch bool // for the discovery
	secret     *corev1.SecretReference
}

func iscsiOf(s Source) *iscsiVolume {
	if s.Persistent == nil {
		i := s.Volume.ISCSI
		if i == nil {
			return nil
		}
		v := &iscsiVolume{target: i.IQN, portals: append([]string{i.TargetPortal}, i.Portals...), lun: i.Lun,
			base: i.ISCSIInterface, name: s.name(), fsType: i.FSType, readOnly: i.ReadOnly,
			chap: i.SessionCHAPAuth, chapSearch: i.DiscoveryCHAPAuth}
		if i.InitiatorName != nil {
			v.initiator = *i.InitiatorName
		}
		if i.SecretRef != nil {
			v.secret = &corev1.SecretReference{Name: i.SecretRef.Name}
		}
		return v.complete()
	}
	i := s.Persistent.Spec.ISCSI
	if i == nil {
		return nil
	}
	v := &iscsiVolume{target: i.IQN, portals: append([]string{i.TargetPortal}, i.Portals...), lun: i.Lun,
		base: i.ISCSIInterface, name: s.name(), fsType: i.FSType, readOnly: i.ReadOnly,
		chap: i.SessionCHAPAuth, chapSearch: i.DiscoveryCHAPAuth, secret: i.SecretRef}
	if i.InitiatorName != nil {
		v.initiator = *i.InitiatorName
	}
	return v.complete()
}

// complete fills in what may be left out, each portal once.
func (v *iscsiVolume) complete() *iscsiVolume {
	var portals []string
	seen := map[string]bool{}
	for _, p := range v.portals {
		if p = portal(p); !seen[p] {
			portals, seen[p] = append(portals, p), true
		}
	}
	v.portals = portals
	v.base, v.fsType = cmp.Or(v.base, "default"), cmp.Or(v.fsType, "ext4")
	return v
}

const iscsiPort = "3260"

// portal has a port, and an IPv6 address in brackets.
func portal(p string) string {
	if ip, err := netip.ParseAddr(p); err == nil {
		return net.JoinHostPort(ip.String(), iscsiPort)
	}
	if n := len(p); n > 2 && p[0] == '[' && p[n-1] == ']' {
		return p + ":" + iscsiPort
	}
	if _, _, err := net.SplitHostPort(p); err != nil {
		return p + ":" + iscsiPort
	}
	return p
}

// disk implements what diskOf asks. Upstream's directory has the interface's name,
// which has the volume's where it is one of its own.
func (v *iscsiVolume) disk() *diskSource {
	ifaceDir := v.base
	if v.initiator != "" {
		ifaceDir = v.portals[0] + ":" + v.name
	}
	lun := strconv.Itoa(int(v.lun))
	return &diskSource{
		plugin:   "iscsi",
		key:      "iscsi^" + v.iface() + "^" + v.target + "^" + lun,
		dir:      filepath.Join("iface-"+ifaceDir, v.portals[0]+"-"+v.target+"-lun-"+lun),
		fsType:   v.fsType,
		readOnly: v.readOnly,
		invalid:  v.invalid(),
	}
}

// invalid tells what is wrong with the source. Its names become arguments of iscsiadm,
// and the names of files of the node.
func (v *iscsiVolume) invalid() error {
	if !safeName(v.target) {
		return fmt.Errorf("iscsi.iqn %q has characters that no name of a target has", v.target)
	}
	if !safeName(v.base) {
		return fmt.Errorf("iscsi.iscsiInterface %q is no name of an interface of iscsiadm", v.base)
	}
	if v.initiator != "" && !safeName(v.initiator) {
		return fmt.Errorf("iscsi.initiatorName %q has characters that no name of an initiator has", v.initiator)
	}
	if !safeName(v.name) {
		return fmt.Errorf("the volume's name %q is no file name", v.name)
	}
	for _, p := range v.portals {
		if a, err := netip.ParseAddrPort(p); err != nil || a.Addr().Zone() != "" || a.String() != p {
			return fmt.Errorf("iscsi.targetPortal or iscsi.portals: %q is no IP address with or without a port", p)
		}
	}
	if v.lun < 0 || v.lun > 255 {
		return fmt.Errorf("iscsi.lun %d is not between 0 and 255", v.lun)
	}
	if (v.chap || v.chapSearch) && v.secret == nil {
		return errors.New("iscsi.secretRef is missing: chapAuthSession and chapAuthDiscovery need it")
	}
	return nil
}

// iface is the interface of iscsiadm by which the agent logs in. It is the agent's own,
// so that its sessions are told from those of the machine, which it never ends.
func (v *iscsiVolume) iface() string {
	if v.initiator == "" && len(v.base) <= 50 {
		return "shoal-" + v.base
	}
	sum := sha256.Sum256([]byte(v.base + "\n" + v.initiator))
	return "shoal-" + hex.EncodeToString(sum[:12])
}

// sameTarget tells whether a volume is of a target that is logged in to for this one.
func (v *iscsiVolume) sameTarget(s Source) bool {
	o := iscsiOf(s)
	return o != nil && o.target == v.target && o.iface() == v.iface()
}

func (v *iscsiVolume) sameIface(s Source) bool {
	o := iscsiOf(s)
	return o != nil && o.iface() == v.iface()
}

// iscsiFinder logs in to targets by iscsiadm of open-iscsi. It keeps nothing: what it
// made is told by the interface's name, in the kernel and in the records of open-iscsi.
type iscsiFinder struct {
	diskNode
	users   diskUsers
	objects Objects
}

// find implements finder.
func (f iscsiFinder) find(ctx context.Context, v *Volume) (string, error) {
	i := iscsiOf(v.Source)
	done, err := f.users.exclusive(ctx, "iscsi^"+i.target)
	if err != nil {
		return "", err
	}
	defer done()
	// An agent that takes over asks the target for nothing, and the API for no password.
	list := func() []string { return f.disks(f.sessions(i), i.lun) }
	if len(list()) > 0 && f.users.taken(v) {
		return f.choose(ctx, list, false)
	}
	failed := f.logins(ctx, v, i)
	sessions := f.sessions(i)
	if len(sessions) == 0 {
		return "", errors.Join(failed, ctx.Err())
	}
	look := func() bool { return len(list()) > 0 }
	if !look() {
		if err := f.scan(sessions, i.lun); err != nil {
			return "", err
		}
		if err := f.await(ctx, f.wait, look); err != nil {
			return "", errors.Join(fmt.Errorf("iscsi: target %s shows this node no disk with lun %d: "+
				"the target has to have it, and to allow it to this initiator", i.target, i.lun), failed, ctx.Err())
		}
	}
	return f.choose(ctx, list, len(sessions) > 1)
}

// logins logs in at each portal where there is no session. One is enough.
func (f iscsiFinder) logins(ctx context.Context, v *Volume, i *iscsiVolume) error {
	known := map[string]bool{}
	for _, s := range f.sessions(i) {
		known[s.portal] = true
	}
	l := login{iscsiFinder: f, iscsiVolume: i, volume: v}
	var failed []error
	for _, p := range i.portals {
		if known[p] || ctx.Err() != nil {
			continue
		}
		if err := l.at(ctx, p); err != nil {
			failed = append(failed, fmt.Errorf("iscsi: target %s at portal %s: %w", i.target, p, err))
		}
	}
	return errors.Join(failed...)
}

// lose implements finder. The target is logged out of with its last volume.
func (f iscsiFinder) lose(ctx context.Context, v *Volume) error {
	i := iscsiOf(v.Source)
	done, err := f.users.exclusive(ctx, "iscsi^"+i.target)
	if err != nil {
		return err
	}
	defer done()
	for _, p := range v.Disk.Searches {
		if err := f.dropSearch(ctx, p); err != nil {
			return err
		}
	}
	if err := f.remove(ctx, f.disks(f.sessions(i), i.lun)); err != nil {
		return err
	}
	if len(f.users.using(v, i.sameTarget)) > 0 {
		return nil
	}
	if err := f.logout(ctx, i); err != nil {
		return err
	}
	return f.dropIface(ctx, v, i)
}

// session is one with a target, by an interface of the agent's.
type session struct {
	name   string // the kernel's
	portal string
}

// sessions are those of the target that the agent made. The kernel knows them: one
// that an agent before made, too.
func (f iscsiFinder) sessions(i *iscsiVolume) (list []session) {
	const class = "class/iscsi_session"
	entries, err := os.ReadDir(filepath.Join(f.sys, class))
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if f.read(class, e.Name(), "targetname") != i.target || f.read(class, e.Name(), "ifacename") != i.iface() {
			continue
		}
		number := e.Name()[min(len("session"), len(e.Name())):]
		connection := filepath.Join("class/iscsi_connection", "connection"+number+":0")
		address, err := netip.ParseAddr(f.read(connection, "persistent_address"))
		if err != nil {
			continue // it goes just now
		}
		port := f.read(connection, "persistent_port")
		list = append(list, session{name: e.Name(), portal: net.JoinHostPort(address.String(), port)})
	}
	return list
}

// disks are the kernel's names of the disks that sessions have at a lun.
func (f iscsiFinder) disks(sessions []session, lun int32) (names []string) {
	for _, s := range sessions {
		pattern := filepath.Join(f.sys, "class/iscsi_session", s.name, "device/target*",
			"*:"+strconv.Itoa(int(lun)), "block", "*")
		found, err := filepath.Glob(pattern)
		if err != nil {
			continue // the pattern is one
		}
		for _, path := range found {
			names = append(names, filepath.Base(path))
		}
	}
	return names
}

// scan has the kernel look for the disk alone: others of the target are not for this
// node.
func (f iscsiFinder) scan(sessions []session, lun int32) error {
	for _, s := range sessions {
		at, err := filepath.EvalSymlinks(filepath.Join(f.sys, "class/iscsi_session", s.name, "device"))
		if err != nil {
			continue // it went
		}
		host := filepath.Base(filepath.Dir(at))
		if err := f.write(filepath.Join("class/scsi_host", host, "scan"), fmt.Sprintf("- - %d", lun)); err != nil {
			return err
		}
	}
	return nil
}
