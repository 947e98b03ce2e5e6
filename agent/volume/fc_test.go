package volume

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const wwn1, wwn2 = "50060e801049cfd1", "500A0982991B8DC5"

// fcDisk is a PersistentVolume of a disk behind Fibre Channel.
func fcDisk(name string, source corev1.FCVolumeSource) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{FC: &source}}}
}

// fcNet is a node with an adapter; two paths lead to its disk, which has a device of
// dm-multipath where that is asked for.
func fcNet(t *testing.T, multipath bool) *storageNet {
	n := newStorageNet(t)
	disk := loopDevice(t)
	links := map[string]string{
		"dev/sda": disk, "dev/sdb": disk,
		"dev/disk/by-path/pci-0000:41:00.0-fc-0x" + wwn1 + "-lun-3":                          "../../sda",
		"dev/disk/by-path/fc-0x" + strings.ToLower(wwn2) + "-lun-3":                          "../../sdb",
		"dev/disk/by-path/pci-0000:41:00.0-fc-0x" + wwn1 + "-lun-3-part1":                    "../../sda1",
		"dev/disk/by-path/pci-0000:41:00.0-fc-0x" + wwn1 + "-lun-33":                         "../../sdx",
		"dev/disk/by-path/ip-192.0.2.1:3260-iscsi-iqn.2020-01.com.x:fc-0x" + wwn1 + "-lun-3": "../../sdy",
		"dev/disk/by-id/scsi-3600508b4_x":                                                    "../../sda",
	}
	files := map[string]string{"sys/class/fc_host/host1/port_name": "0x1", "sys/block/sda/device/delete": "",
		"sys/block/sdb/device/delete": ""}
	if multipath {
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		links["bin/multipath"], links["dev/dm-0"] = exe, disk
		files["sys/block/dm-0/dm/uuid"] = "mpath-3600508b4"
		files["sys/block/sda/holders/dm-0"], files["sys/block/sdb/holders/dm-0"] = "", ""
	}
	n.must(files)
	for link, to := range links {
		if err := os.Symlink(to, n.path(link)); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// TestFC finds disks by the ports of their targets and by their own names, one path or
// several, mounted or as a device.
func TestFC(t *testing.T) {
	byPort := corev1.FCVolumeSource{TargetWWNs: []string{wwn1, wwn2}, Lun: ptr.To[int32](3)}
	for _, c := range []struct {
		name      string
		source    corev1.FCVolumeSource
		multipath bool
		mode      corev1.PersistentVolumeMode
		device    string
		dir       string
		removed   []string
	}{
		{"ports", byPort, false, corev1.PersistentVolumeFilesystem, "sda", wwn1 + "-" + wwn2 + "-lun-3",
			[]string{"sda", "sdb"}},
		{"multipath", byPort, true, corev1.PersistentVolumeFilesystem, "dm-0", wwn1 + "-" + wwn2 + "-lun-3",
			[]string{"sda", "sdb"}},
		{"name", corev1.FCVolumeSource{WWIDs: []string{"3600508b4 x"}}, false, corev1.PersistentVolumeFilesystem, "sda",
			"3600508b4 x", []string{"sda"}},
		{"device", byPort, true, corev1.PersistentVolumeBlock, "dm-0", "volumeDevices/" + wwn1 + "-" + wwn2 + "-lun-3",
			[]string{"sda", "sdb"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, w := fcNet(t, c.multipath), newWorld(t)
			pv := fcDisk("v", c.source)
			pv.Spec.VolumeMode = &c.mode
			m, p := diskAgent(n, w, w, pv), csiPod("p", claimed("v"))
			if err := m.Ensure(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			want := "fc/" + c.dir + ": ext4 " + n.path("dev", c.device) + " []"
			path, err := m.Path(p, "v")
			if c.mode == corev1.PersistentVolumeBlock {
				if device, err := os.Readlink(path); err != nil || device != n.path("dev", c.device) {
					t.Errorf("the device is %q, %v", device, err)
				}
			} else if got := globalMounts(w); err != nil || !slices.Equal(got, []string{want}) {
				t.Errorf("mounted: %q, want %q, %v", got, want, err)
			}
			if err := m.Release(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			for _, disk := range c.removed {
				if got := n.text("sys/block", disk, "device/delete"); got != "1" {
					t.Errorf("the kernel still knows %s", disk)
				}
			}
			if _, err := os.Lstat(n.path("dev/dm-0")); err == nil || len(w.mounts) > 0 {
				t.Errorf("left: %v, %v", err, w.mounts)
			}
		})
	}
}

// TestFCScans has the adapters look for a disk that the kernel does not know yet.
func TestFCScans(t *testing.T) {
	n, w := fcNet(t, false), newWorld(t)
	link := n.path("dev/disk/by-path/fc-0x" + wwn1 + "-lun-5")
	scan := n.path("sys/class/scsi_host/host1/scan")
	if err := os.Remove(scan); err != nil {
		t.Fatal(err)
	}
	n.must(map[string]string{"sys/class/scsi_host/host1/scan": ""})
	pv := fcDisk("v", corev1.FCVolumeSource{TargetWWNs: []string{wwn1}, Lun: ptr.To[int32](5)})
	m, p, ctx := diskAgent(n, w, w, pv), csiPod("p", claimed("v")), t.Context()
	ended := make(chan error, 1)
	go func() { ended <- m.Ensure(ctx, p) }()
	for n.text("sys/class/scsi_host/host1/scan") != "- - 5" {
		select {
		case err := <-ended:
			t.Fatalf("it ended before it had the adapters look: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	if err := os.Symlink("../../sda", link); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if err := m.Release(ctx, p); err != nil {
		t.Fatal(err)
	}
}

// TestFCFailures: an event says what is wrong and what to do.
func TestFCFailures(t *testing.T) {
	for want, c := range map[string]struct {
		source corev1.FCVolumeSource
		set    func(*storageNet)
	}{
		"no Fibre Channel adapter": {corev1.FCVolumeSource{TargetWWNs: []string{wwn1}, Lun: ptr.To[int32](9)},
			func(n *storageNet) { _ = os.RemoveAll(n.path("sys/class/fc_host")) }},
		"names the lun 9 of " + wwn1: {corev1.FCVolumeSource{TargetWWNs: []string{wwn1}, Lun: ptr.To[int32](9)},
			func(n *storageNet) { n.wait = time.Millisecond }},
		"names 36, 37": {corev1.FCVolumeSource{WWIDs: []string{"36", "37"}},
			func(n *storageNet) { n.wait = time.Millisecond }},
		"sdz is no block device": {corev1.FCVolumeSource{WWIDs: []string{"file"}}, func(n *storageNet) {
			n.must(map[string]string{"dev/sdz": "not a disk"})
			if err := os.Symlink("/elsewhere/sdz", n.path("dev/disk/by-id/scsi-file")); err != nil {
				panic(err)
			}
		}},
		"is no World Wide Name": {corev1.FCVolumeSource{TargetWWNs: []string{"../" + wwn1}}, nil},
		"fc.wwids":              {corev1.FCVolumeSource{WWIDs: []string{"../../x"}}, nil},
	} {
		n, w := fcNet(t, false), newWorld(t)
		if c.set != nil {
			c.set(n)
		}
		m, p := diskAgent(n, w, w, fcDisk("v", c.source)), csiPod("p", claimed("v"))
		if err := m.Ensure(t.Context(), p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
		if err := m.Release(t.Context(), p); err != nil || len(w.mounts) > 0 {
			t.Errorf("left: %v, %v", w.mounts, err)
		}
	}
}

// TestFCOneDisk: two names of one disk, in another order or case, are one mount.
func TestFCOneDisk(t *testing.T) {
	n, w := fcNet(t, false), newWorld(t)
	m := diskAgent(n, w, w,
		fcDisk("v", corev1.FCVolumeSource{TargetWWNs: []string{wwn1, wwn2}, Lun: ptr.To[int32](3)}),
		fcDisk("w", corev1.FCVolumeSource{TargetWWNs: []string{strings.ToLower(wwn2), wwn1}, Lun: ptr.To[int32](3)}))
	p, q := csiPod("p", claimed("v")), csiPod("q", claimed("w"))
	for _, pod := range []*corev1.Pod{p, q} {
		if err := m.Ensure(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	if got := globalMounts(w); len(got) != 1 {
		t.Errorf("mounted: %q", got)
	}
	for _, pod := range []*corev1.Pod{p, q} {
		if got := globalMounts(w); len(got) != 1 {
			t.Errorf("before %s goes: %q", pod.Name, got)
		}
		if err := m.Release(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	if len(w.mounts) > 0 {
		t.Errorf("left: %v", w.mounts)
	}
}
