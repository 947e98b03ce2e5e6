package volume

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const (
	targetA = "iqn.2020-01.com.example:a"
	targetB = "iqn.2020-01.com.example:b"
	portal1 = "192.0.2.1:3260"
	portal2 = "[2001:db8::2]:3260"
)

// password is what no command line may show.
const password = "Tr0ub4dor and 3"

func chapSecret() map[string]*corev1.Secret {
	return map[string]*corev1.Secret{"chap": {Data: map[string][]byte{
		"node.session.auth.username": []byte("me"), "node.session.auth.password": []byte(password),
		"discovery.sendtargets.auth.username": []byte("seeker"), "discovery.sendtargets.auth.password": []byte(password),
	}}}
}

// iscsiDisk is a PersistentVolume of a target's disk.
func iscsiDisk(name, target string, lun int32,
	more ...func(*corev1.ISCSIPersistentVolumeSource)) *corev1.PersistentVolume {
	source := &corev1.ISCSIPersistentVolumeSource{TargetPortal: "192.0.2.1", Portals: []string{portal2},
		IQN: target, Lun: lun, ISCSIInterface: "default"}
	for _, change := range more {
		change(source)
	}
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{ISCSI: source}}}
}

// diskAgent is an agent on a node of the network, with mounts that are none unless
// there are others.
func diskAgent(n *storageNet, w *world, mounts mounter, volumes ...*corev1.PersistentVolume) *Manager {
	for _, pv := range volumes {
		w.claims[pv.Name] = pv
	}
	return &Manager{RootDir: filepath.Join(w.root, "kubelet"), Claims: w, Objects: objects{secrets: chapSecret()},
		Records: w.store(), Log: slog.New(slog.DiscardHandler), mounts: mounts, disks: n.node(), Boot: "b"}
}

// iscsiNet has two targets at two portals; their disks are devices that nothing has.
func iscsiNet(t *testing.T) *storageNet {
	n := newStorageNet(t)
	n.Portals = map[string]*fakePortal{portal1: {Tag: 1}, portal2: {Tag: 2}}
	for _, target := range []string{targetA, targetB} {
		n.Targets[target] = &fakeTarget{Disks: map[string]string{"0": loopDevice(t), "1": loopDevice(t)}}
	}
	n.save(t)
	return n
}

func globalMounts(w *world) (list []string) {
	for path, what := range w.mounts {
		if rest, ok := strings.CutPrefix(path, filepath.Join(w.root, "kubelet/plugins/kubernetes.io")+"/"); ok {
			list = append(list, rest+": "+what)
		}
	}
	slices.Sort(list)
	return list
}

// TestISCSI has volumes come and go: a disk is mounted once for two pods, a target is
// logged in to once for two disks, and logged out of with the last of them. What is of
// the machine itself stays.
func TestISCSI(t *testing.T) {
	n, w := iscsiNet(t), newWorld(t)
	n.open(targetA, portal1, "default") // the machine's own
	mine := n.sessions()
	m := diskAgent(n, w, w, iscsiDisk("a0", targetA, 0), iscsiDisk("a1", targetA, 1), iscsiDisk("b0", targetB, 0))
	p, q, r := csiPod("p", claimed("a0"), claimed("b0")), csiPod("q", claimed("a0")), csiPod("r", claimed("a1"))
	for _, pod := range []*corev1.Pod{p, q, r} {
		if err := m.Ensure(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	var want []string
	for _, volume := range []string{targetA + "-lun-0", targetA + "-lun-1", targetB + "-lun-0"} {
		want = append(want, "iscsi/iface-default/"+portal1+"-"+volume)
	}
	got := globalMounts(w)
	for i := range want {
		if len(got) != len(want) || !strings.HasPrefix(got[i], want[i]+": ext4 "+n.path("dev")+"/sd") {
			t.Fatalf("mounted: %q, want %q", got, want)
		}
	}
	path, err := m.Path(q, "a0")
	if err != nil || w.mounts[path] != "none "+filepath.Join(m.RootDir, "plugins/kubernetes.io", want[0])+" [bind]" ||
		!strings.HasSuffix(path, "/pods/u-q/volumes/kubernetes.io~iscsi/a0") {
		t.Errorf("the pod has %q at %s, %v", w.mounts[path], path, err)
	}
	if got := n.sessions(); len(got) != 5 { // two portals of two targets, and the machine's
		t.Errorf("sessions: %q", got)
	}
	for _, step := range []struct {
		pod      *corev1.Pod
		sessions int
	}{{p, 3}, {q, 3}, {r, 1}} {
		if err := m.Release(t.Context(), step.pod); err != nil {
			t.Fatal(err)
		}
		if got := n.sessions(); len(got) != step.sessions {
			t.Errorf("without %s: sessions %q", step.pod.Name, got)
		}
	}
	if got := n.sessions(); !slices.Equal(got, mine) {
		t.Errorf("the machine's own sessions are %q", got)
	}
	if left := n.left(); len(left) != 1 || len(w.mounts) > 0 {
		t.Errorf("left: %q, %v", left, w.mounts)
	}
	if _, err := os.Lstat(filepath.Join(m.RootDir, "plugins/kubernetes.io/iscsi/iface-default")); err == nil {
		t.Error("the directory of the interface is left")
	}
}

// TestISCSIForgetsDisk: where the session stays for another disk, the kernel forgets
// the one that nobody has, since another may have its number the next time.
func TestISCSIForgetsDisk(t *testing.T) {
	n, w := iscsiNet(t), newWorld(t)
	m := diskAgent(n, w, w, iscsiDisk("a0", targetA, 0), iscsiDisk("a1", targetA, 1))
	p, q := csiPod("p", claimed("a0")), csiPod("q", claimed("a1"))
	if err := errors.Join(m.Ensure(t.Context(), p), m.Ensure(t.Context(), q), m.Release(t.Context(), p)); err != nil {
		t.Fatal(err)
	}
	for disk, want := range map[string]string{"sd1-0": "1", "sd2-0": "1", "sd1-1": "", "sd2-1": ""} {
		if got := n.text("sys/block", disk, "device/delete"); got != want {
			t.Errorf("%s/device/delete: %q, want %q", disk, got, want)
		}
	}
	if err := m.Release(t.Context(), q); err != nil {
		t.Fatal(err)
	}
}

// TestISCSINameComesLate: the kernel shows a disk before its name is in /dev.
func TestISCSINameComesLate(t *testing.T) {
	n, w := iscsiNet(t), newWorld(t)
	n.Late = 200 * time.Millisecond
	n.save(t)
	m := diskAgent(n, w, w, iscsiDisk("a1", targetA, 1))
	p := csiPod("p", claimed("a1"))
	if err := errors.Join(m.Ensure(t.Context(), p), m.Release(t.Context(), p)); err != nil {
		t.Fatal(err)
	}
}

// TestISCSICredentials logs in with CHAP for discovery and session. The password is in
// no command, and in no file once the volume is gone.
func TestISCSICredentials(t *testing.T) {
	n, w := iscsiNet(t), newWorld(t)
	n.Portals[portal1].Search, n.Targets[targetA].Login = "seeker:"+password, "me:"+password
	n.save(t)
	chap := func(s *corev1.ISCSIPersistentVolumeSource) {
		s.SessionCHAPAuth, s.DiscoveryCHAPAuth = true, true
		s.SecretRef = &corev1.SecretReference{Name: "chap", Namespace: "ns"}
	}
	m := diskAgent(n, w, w, iscsiDisk("a0", targetA, 0, chap))
	p := csiPod("p", claimed("a0"))
	if err := m.Ensure(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	record := n.path("db/nodes", targetA, "192.0.2.1,3260,1/shoal-default")
	st, err := os.Stat(record)
	if err != nil || st.Mode().Perm() != 0o600 || n.values(record)["node.startup"] != "manual" {
		t.Errorf("the record: %v, %v, %v", st, n.values(record), err)
	}
	if err := m.Release(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if log := n.log(); strings.Contains(log, "Tr0ub4dor") || strings.Contains(log, "seeker") {
		t.Errorf("a command shows credentials:\n%s", log)
	}
	if left := n.left(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// TestISCSIFailures: an event says what is wrong and what to do; afterwards nothing is
// left.
func TestISCSIFailures(t *testing.T) {
	chap := func(s *corev1.ISCSIPersistentVolumeSource) {
		s.SessionCHAPAuth, s.SecretRef = true, &corev1.SecretReference{Name: "chap"}
	}
	for _, c := range []struct {
		name  string
		set   func(*storageNet)
		pv    *corev1.PersistentVolume
		wants []string
	}{
		{"no-program", func(n *storageNet) { _ = os.Remove(n.path("bin/iscsiadm")) }, iscsiDisk("v", targetA, 0),
			[]string{"WaitForAttach failed for volume \"v\"", "iscsiadm is not installed on this node: install open-iscsi"}},
		{"no-module", func(n *storageNet) {
			n.Portals[portal1].Down, n.Portals[portal2].Down = true, true
			_ = os.RemoveAll(n.path("sys/class/iscsi_transport"))
		}, iscsiDisk("v", targetA, 0), []string{"load its module iscsi_tcp"}},
		{"no-daemon", func(n *storageNet) { n.NoDaemon = true }, iscsiDisk("v", targetA, 0),
			[]string{"The daemon iscsid does not run on this node: start it"}},
		{"portals-down", func(n *storageNet) { n.Portals[portal1].Down, n.Portals[portal2].Down = true, true },
			iscsiDisk("v", targetA, 0), []string{"at portal " + portal1, "at portal " + portal2, "connection failure"}},
		{"no-such-target", nil, iscsiDisk("v", targetA+"x", 0),
			[]string{"no such target: it has " + targetA + ", " + targetB}},
		{"no-such-lun", func(n *storageNet) { n.wait = time.Millisecond }, iscsiDisk("v", targetA, 7),
			[]string{"shows this node no disk with lun 7"}},
		{"no-such-interface", nil, iscsiDisk("v", targetA, 0,
			func(s *corev1.ISCSIPersistentVolumeSource) { s.ISCSIInterface = "eth9" }),
			[]string{"iscsi.iscsiInterface", "Could not read iface info for eth9"}},
		{"wrong-password", func(n *storageNet) { n.Targets[targetA].Login = "me:other" },
			iscsiDisk("v", targetA, 0, chap),
			[]string{"does not take the name or the password: see iscsi.secretRef"}},
		{"no-secret", nil, iscsiDisk("v", targetA, 0, chap, func(s *corev1.ISCSIPersistentVolumeSource) {
			s.SecretRef.Name = "none"
		}), []string{"failed to get the Secret ns/none of iscsi.secretRef"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, w := iscsiNet(t), newWorld(t)
			if c.name == "no-program" {
				t.Setenv("PATH", n.path("bin"))
			}
			if c.set != nil {
				c.set(n)
				n.save(t)
			}
			m := diskAgent(n, w, w, c.pv)
			err := m.Ensure(t.Context(), csiPod("p", claimed("v")))
			for _, want := range c.wants {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %q in it", err, want)
				}
			}
			if err := m.Release(t.Context(), csiPod("p")); err != nil {
				t.Error(err)
			}
			if left := n.left(); len(left) > 0 || len(w.mounts) > 0 {
				t.Errorf("left: %q, %v", left, w.mounts)
			}
		})
	}
}

// TestISCSIOnePath: a target that is reached by one portal is reached.
func TestISCSIOnePath(t *testing.T) {
	n, w := iscsiNet(t), newWorld(t)
	n.Portals[portal1].Down = true
	n.save(t)
	m := diskAgent(n, w, w, iscsiDisk("v", targetA, 0))
	p := csiPod("p", claimed("v"))
	if err := m.Ensure(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if got, want := n.sessions(), []string{"shoal-default " + targetA + " " + portal2}; !slices.Equal(got, want) {
		t.Errorf("sessions: %q, want %q", got, want)
	}
	if err := m.Release(t.Context(), p); err != nil {
		t.Fatal(err)
	}
}

// TestISCSIMultipath: the device of all paths is mounted, which comes late, and goes
// before its paths.
func TestISCSIMultipath(t *testing.T) {
	n, w := iscsiNet(t), newWorld(t)
	exe, err := os.Executable()
	if err == nil {
		err = os.Symlink(exe, n.path("bin/multipath"))
	}
	if err != nil {
		t.Fatal(err)
	}
	m := diskAgent(n, w, w, iscsiDisk("v", targetA, 0))
	ended, ctx := make(chan error, 1), t.Context()
	p := csiPod("p", claimed("v"))
	go func() { ended <- m.Ensure(ctx, p) }()
	for !slices.Contains(n.left(), "sys/block/sd2-0") {
		select {
		case err := <-ended:
			t.Fatalf("it ended before all paths had a device: %v", err)
		default:
		}
	}
	n.must(map[string]string{"sys/block/dm-0/dm/uuid": "mpath-36001405", "sys/block/sd1-0/holders/dm-0": "",
		"sys/block/sd2-0/holders/dm-0": ""})
	if err := os.Symlink(n.Targets[targetA].Disks["0"], n.path("dev/dm-0")); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if got := globalMounts(w); len(got) != 1 || !strings.Contains(got[0], n.path("dev/dm-0")) {
		t.Errorf("mounted: %q", got)
	}
	if err := m.Release(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if left := n.left(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// TestISCSIInitiator: a volume's own initiator name, and another interface, are told
// from others; volumes of pods themselves are disks like those behind claims.
func TestISCSIInitiator(t *testing.T) {
	n, w := iscsiNet(t), newWorld(t)
	m := diskAgent(n, w, w, iscsiDisk("v", targetA, 0))
	inline := corev1.Volume{Name: "own", VolumeSource: corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{
		TargetPortal: portal1, IQN: targetA, ISCSIInterface: "other", InitiatorName: ptr.To("iqn.2020-01.com.example:me"),
		FSType: "xfs", ReadOnly: true}}}
	p := csiPod("p", claimed("v"), inline)
	if err := m.Ensure(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	i := iscsiOf(Source{Volume: inline})
	has := n.values(n.path("db/ifaces", i.iface()))
	if has["iface.initiatorname"] != "iqn.2020-01.com.example:me" || has["iface.mtu"] != "9000" {
		t.Errorf("the interface is %v", has)
	}
	got := strings.Join(globalMounts(w), "\n")
	want := "iscsi/iface-" + portal1 + ":own/" + portal1 + "-" + targetA + "-lun-0: xfs "
	if !strings.Contains(got, want) || !strings.Contains(got, "[ro]") {
		t.Errorf("mounted:\n%s\nwant %q and [ro]", got, want)
	}
	path, err := m.Path(p, "own")
	if err != nil || !strings.HasSuffix(w.mounts[path], " [bind ro]") {
		t.Errorf("the pod has %q at %s, %v", w.mounts[path], path, err)
	}
	if err := m.Release(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if left := n.left(); len(left) > 0 || len(w.mounts) > 0 {
		t.Errorf("left: %q, %v", left, w.mounts)
	}
}

// TestISCSIDevice gives a pod the disk as a device.
func TestISCSIDevice(t *testing.T) {
	n, w := iscsiNet(t), newWorld(t)
	pv := iscsiDisk("v", targetA, 0)
	pv.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	m := diskAgent(n, w, w, pv, iscsiDisk("mounted", targetA, 0))
	p := csiPod("p", claimed("v"))
	if err := m.Ensure(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	path, err := m.Path(p, "v")
	device, linkErr := os.Readlink(path)
	if err := errors.Join(err, linkErr); err != nil || filepath.Dir(device) != n.path("dev") ||
		!strings.HasSuffix(path, "/pods/u-p/volumeDevices/kubernetes.io~iscsi/v") {
		t.Errorf("%s is at %s, %v", device, path, err)
	}
	err = m.Ensure(t.Context(), csiPod("q", claimed("mounted")))
	if err == nil || !strings.Contains(err.Error(), "pod ns/p of this node has the same disk with another volumeMode") {
		t.Errorf("the disk is mounted too: %v", err)
	}
	if err := m.Release(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(m.RootDir, "plugins/kubernetes.io/iscsi/volumeDevices/*/*"))
	if left := n.left(); len(left)+len(files) > 0 {
		t.Errorf("left: %q %q", left, files)
	}
}

// TestISCSIReadOnly: a disk that is mounted read-only is not written on the node.
func TestISCSIReadOnly(t *testing.T) {
	n, w := iscsiNet(t), newWorld(t)
	many := iscsiDisk("many", targetA, 0)
	many.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
	m := diskAgent(n, w, w, many, iscsiDisk("one", targetA, 0))
	reader, writer := csiPod("reader", claimed("many")), csiPod("writer", claimed("one"))
	if err := m.Ensure(t.Context(), reader); err != nil {
		t.Fatal(err)
	}
	if got := globalMounts(w); len(got) != 1 || !strings.HasSuffix(got[0], "[ro]") {
		t.Errorf("mounted: %q", got)
	}
	err := m.Ensure(t.Context(), writer)
	const refused = "pod ns/reader of this node has the same disk, which is mounted read-only"
	if err == nil || !strings.Contains(err.Error(), refused) {
		t.Errorf("the writer got %v", err)
	}
	if err := errors.Join(m.Release(t.Context(), reader), m.Ensure(t.Context(), writer)); err != nil {
		t.Fatal(err)
	}
	// By another PersistentVolume, the same disk is mounted once, and bound read-only.
	if err := m.Ensure(t.Context(), reader); err != nil {
		t.Fatal(err)
	}
	path, err := m.Path(reader, "many")
	if got := globalMounts(w); err != nil || len(got) != 1 || strings.HasSuffix(got[0], "[ro]") ||
		!strings.HasSuffix(w.mounts[path], "[bind ro]") {
		t.Errorf("mounted: %q, for the reader %q, %v", got, w.mounts[path], err)
	}
	if err := errors.Join(m.Release(t.Context(), reader), m.Release(t.Context(), writer)); err != nil {
		t.Fatal(err)
	}
}

// TestISCSIInvalid: users name targets, and never files or options of the node.
func TestISCSIInvalid(t *testing.T) {
	n, w := iscsiNet(t), newWorld(t)
	for want, change := range map[string]func(*corev1.ISCSIPersistentVolumeSource){
		"iscsi.iqn":            func(s *corev1.ISCSIPersistentVolumeSource) { s.IQN = "iqn.2020-01.com.example:a/../../../x" },
		"iscsi.iqn \"..\"":     func(s *corev1.ISCSIPersistentVolumeSource) { s.IQN = ".." },
		"iscsi.iscsiInterface": func(s *corev1.ISCSIPersistentVolumeSource) { s.ISCSIInterface = "../default" },
		"iscsi.initiatorName":  func(s *corev1.ISCSIPersistentVolumeSource) { s.InitiatorName = ptr.To("iqn.2020-01.a:b\nx=y") },
		"iscsi.targetPortal":   func(s *corev1.ISCSIPersistentVolumeSource) { s.TargetPortal = "192.0.2.1/../x" },
		"\"files:3260\"":       func(s *corev1.ISCSIPersistentVolumeSource) { s.TargetPortal = "files" },
		"fe80::1%eth0":         func(s *corev1.ISCSIPersistentVolumeSource) { s.Portals = []string{"fe80::1%eth0"} },
		"iscsi.lun":            func(s *corev1.ISCSIPersistentVolumeSource) { s.Lun = 256 },
		"iscsi.secretRef":      func(s *corev1.ISCSIPersistentVolumeSource) { s.SessionCHAPAuth = true },
	} {
		m := diskAgent(n, w, w, iscsiDisk("v", targetA, 0, change))
		if err := m.Ensure(t.Context(), csiPod("p", claimed("v"))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
	if log := n.log(); log != "" || w.records() != "" || len(n.left()) > 0 {
		t.Errorf("something was done: %s %s %q", log, w.records(), n.left())
	}
}

// TestISCSISecretIsNoRecord: a Secret of a user does not become lines of a file of root.
func TestISCSISecretIsNoRecord(t *testing.T) {
	n, w := iscsiNet(t), newWorld(t)
	chap := func(s *corev1.ISCSIPersistentVolumeSource) {
		s.SessionCHAPAuth, s.SecretRef = true, &corev1.SecretReference{Name: "chap"}
	}
	for _, bad := range []string{"x\nnode.startup = automatic", "x\x00y", strings.Repeat("x", 256), "x\r"} {
		m := diskAgent(n, w, w, iscsiDisk("v", targetA, 0, chap))
		m.Objects.(objects).secrets["chap"].Data["node.session.auth.password"] = []byte(bad)
		err := m.Ensure(t.Context(), csiPod("p", claimed("v")))
		const refused = "the key node.session.auth.password of Secret ns/chap has characters"
		if err == nil || !strings.Contains(err.Error(), refused) ||
			strings.Contains(err.Error(), bad) {
			t.Errorf("%q: got %v", bad, err)
		}
		if err := m.Release(t.Context(), csiPod("p")); err != nil {
			t.Error(err)
		}
	}
}

// TestISCSIDiskOfTheNode: what the machine has mounted itself is for no pod, and what
// somebody else has is not taken from the kernel.
func TestISCSIDiskOfTheNode(t *testing.T) {
	n, w := iscsiNet(t), newWorld(t)
	disk, dir := n.Targets[targetA].Disks["0"], t.TempDir()
	busy := func() {
		if out, err := exec.Command("mkfs.ext4", "-q", "-F", disk).CombinedOutput(); err != nil {
			t.Skipf("mkfs.ext4: %v %s", err, out)
		}
		if out, err := exec.Command("mount", disk, dir).CombinedOutput(); err != nil {
			t.Skipf("mount: %v %s", err, out)
		}
	}
	free := func() {
		if err := unmount(dir); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(free)
	m, p := diskAgent(n, w, w, iscsiDisk("v", targetA, 0)), csiPod("p", claimed("v"))
	busy()
	err := m.Ensure(t.Context(), p)
	if err == nil || !strings.Contains(err.Error(), "is in use by something that is no pod's") {
		t.Errorf("a pod gets the machine's disk: %v", err)
	}
	free()
	// A mount namespace that began meanwhile may hold the disk for a moment longer.
	soon := func(do func(context.Context, *corev1.Pod) error) {
		for begin := time.Now(); ; time.Sleep(100 * time.Millisecond) {
			err := do(t.Context(), p)
			if err == nil {
				return
			}
			if time.Since(begin) > time.Minute {
				t.Fatal(err)
			}
		}
	}
	soon(m.Ensure)
	busy()
	if err := m.Release(t.Context(), p); err == nil || len(n.sessions()) == 0 {
		t.Errorf("it is logged out of under somebody's mount: %v", err)
	}
	free()
	soon(m.Release)
}

// TestISCSITakenOver: the next agent asks neither the API nor the target for what is
// mounted.
func TestISCSITakenOver(t *testing.T) {
	n, w := iscsiNet(t), newWorld(t)
	chap := func(s *corev1.ISCSIPersistentVolumeSource) {
		s.SessionCHAPAuth, s.SecretRef = true, &corev1.SecretReference{Name: "chap"}
	}
	p, pv := csiPod("p", claimed("v")), iscsiDisk("v", targetA, 0, chap)
	if err := diskAgent(n, w, w, pv).Ensure(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	before, mounts := n.log(), maps.Clone(w.mounts)
	next := diskAgent(n, w, w, pv)
	next.Objects = objects{}
	if err := errors.Join(next.Restore([]*corev1.Pod{p}), next.Ensure(t.Context(), p)); err != nil {
		t.Fatal(err)
	}
	if n.log() != before || !maps.Equal(mounts, w.mounts) {
		t.Errorf("done again: %s, %v", strings.TrimPrefix(n.log(), before), w.mounts)
	}
	if err := next.Release(t.Context(), p); err != nil {
		t.Fatal(err)
	}
}

// TestLeaveDisks: a machine that is left has neither mounts nor sessions nor records.
func TestLeaveDisks(t *testing.T) {
	n, w := iscsiNet(t), newWorld(t)
	m := diskAgent(n, w, w, iscsiDisk("a0", targetA, 0), iscsiDisk("a1", targetA, 1))
	p, q := csiPod("p", claimed("a0"), claimed("a1")), csiPod("q", claimed("a0"))
	if err := errors.Join(m.Ensure(t.Context(), p), m.Ensure(t.Context(), q)); err != nil {
		t.Fatal(err)
	}
	last := &Manager{RootDir: m.RootDir, Records: w.store(), mounts: w, disks: n.node()}
	for range 2 {
		if err := last.LeaveDisks(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if left := n.left(); len(left) > 0 || len(w.mounts) > 0 || w.records() != "" {
		t.Errorf("left: %q, %v, %s", left, w.mounts, w.records())
	}
}
