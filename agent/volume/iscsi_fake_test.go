package volume

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// storageNet is a network of iSCSI targets, and what a node knows of it, as files below
// a directory: those of sysfs and of /dev, the records of open-iscsi, and log, which
// has each command of iscsiadm. What the program is told, the test does.
type storageNet struct {
	dir     string
	out     strings.Builder        // of iscsiadm
	wait    time.Duration          // for disks; none: long
	Portals map[string]*fakePortal // by address and port
	Targets map[string]*fakeTarget
	// Kill ends who calls iscsiadm at its n-th call, before its effect or after.
	Kill  int
	After bool
	// Late is how long after the kernel has a disk its name is in /dev.
	Late time.Duration
	// NoDaemon: iscsid does not run.
	NoDaemon bool
}

type fakePortal struct {
	Tag  int
	Down bool
	// Search is what the discovery needs as CHAP.
	Search string
}

type fakeTarget struct {
	// Disks are the devices of its luns.
	Disks map[string]string
	// Login is what a session needs as CHAP.
	Login string
}

// fakeState names the directory of the network for the programs.
const fakeState = "SHOAL_TEST_STORAGE"

func newStorageNet(t *testing.T) *storageNet {
	t.Helper()
	n := &storageNet{dir: t.TempDir(), Portals: map[string]*fakePortal{}, Targets: map[string]*fakeTarget{}}
	for _, dir := range []string{"bin", "dev/disk/by-path", "dev/disk/by-id", "db/ifaces", "sys/block",
		"sys/class/iscsi_transport/tcp", "sys/class/iscsi_session", "sys/class/iscsi_connection"} {
		if err := os.MkdirAll(filepath.Join(n.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(exe, filepath.Join(n.dir, "bin/mortal-agent")); err != nil {
		t.Fatal(err)
	}
	n.answers(t)
	t.Setenv("PATH", filepath.Join(n.dir, "bin")+":"+os.Getenv("PATH"))
	t.Setenv(fakeState, n.dir)
	for host := 1; host < 5; host++ {
		n.scans(t, host)
	}
	n.save(t)
	return n
}

// iscsiProgram is iscsiadm: it has the test answer. The reply's first line is its code.
const iscsiProgram = `#!/bin/sh
cd "$SHOAL_TEST_STORAGE" && mkfifo reply.$$ && echo "$$ $PPID $*" >requests || exit 99
{ read -r code; cat; } <reply.$$
rm reply.$$
exit "$code"
`

// answers does what iscsiadm is told, until the test ends.
func (n *storageNet) answers(t *testing.T) {
	if err := os.WriteFile(n.path("bin/iscsiadm"), []byte(iscsiProgram), 0o755); err != nil {
		t.Fatal(err)
	}
	requests := fifo(t, n.path("requests"))
	done := make(chan struct{})
	go func() {
		defer close(done)
		lines := bufio.NewScanner(requests)
		for lines.Scan() {
			fields := strings.Fields(lines.Text())
			agent, err := strconv.Atoi(fields[1])
			if err != nil {
				t.Error(err)
				return
			}
			now := readNet(n.dir)
			code := now.answer(agent, fields[2:])
			text := fmt.Sprintf("%d\n%s", code, now.out.String())
			if err := os.WriteFile(n.path("reply."+fields[0]), []byte(text), 0); err != nil {
				t.Error(err)
			}
		}
	}()
	t.Cleanup(func() {
		_ = requests.Close() // it is read no more
		<-done
	})
}

// fifo makes one and reads it.
func fifo(t *testing.T, path string) *os.File {
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// scans has the kernel of this node look for disks when it is told to.
func (n *storageNet) scans(t *testing.T, host int) {
	dir := filepath.Join(n.dir, "sys/class/scsi_host", fmt.Sprint("host", host))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f := fifo(t, filepath.Join(dir, "scan"))
	done := make(chan struct{})
	go func() {
		defer close(done)
		buffer := make([]byte, 64)
		for {
			k, err := f.Read(buffer)
			if err != nil {
				return
			}
			fields := strings.Fields(string(buffer[:k]))
			now := readNet(n.dir)
			if err := now.show(host, fields[len(fields)-1]); err != nil {
				t.Error(err)
			}
		}
	}()
	t.Cleanup(func() {
		_ = f.Close() // it is read no more
		<-done
	})
}

func (n *storageNet) node() *diskNode {
	return &diskNode{dev: filepath.Join(n.dir, "dev"), sys: filepath.Join(n.dir, "sys"),
		records: []string{filepath.Join(n.dir, "none"), filepath.Join(n.dir, "db")},
		wait:    cmp.Or(n.wait, time.Minute), waitPaths: time.Minute}
}

func (n *storageNet) save(t *testing.T) {
	t.Helper()
	text, err := json.Marshal(n)
	if err == nil {
		err = os.WriteFile(filepath.Join(n.dir, "net.json"), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func readNet(dir string) *storageNet {
	n := &storageNet{dir: dir}
	text, err := os.ReadFile(filepath.Join(dir, "net.json"))
	if err == nil {
		err = json.Unmarshal(text, n)
	}
	if err != nil {
		panic(err)
	}
	return n
}

func (n *storageNet) path(parts ...string) string {
	return filepath.Join(append([]string{n.dir}, parts...)...)
}

// log is what iscsiadm was told so far.
func (n *storageNet) log() string {
	text, _ := os.ReadFile(n.path("log"))
	return string(text)
}

// left lists sessions, records and interfaces.
func (n *storageNet) left() (found []string) {
	for _, pattern := range []string{"sys/class/iscsi_session/*", "db/ifaces/*", "db/nodes/*/*", "db/send_targets/*/*",
		"sys/block/*", "db/.*"} {
		some, _ := filepath.Glob(n.path(pattern))
		for _, path := range some {
			found = append(found, strings.TrimPrefix(path, n.dir+"/"))
		}
	}
	return found
}

// sessions lists "INTERFACE TARGET PORTAL" of each.
func (n *storageNet) sessions() (list []string) {
	entries, _ := os.ReadDir(n.path("sys/class/iscsi_session"))
	for _, e := range entries {
		list = append(list, n.text("sys/class/iscsi_session", e.Name(), "ifacename")+" "+
			n.text("sys/class/iscsi_session", e.Name(), "targetname")+" "+
			n.text("portals", e.Name()))
	}
	return list
}

func (n *storageNet) text(parts ...string) string {
	text, err := os.ReadFile(n.path(parts...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// must writes files, by their paths.
func (n *storageNet) must(files map[string]string) {
	for path, text := range files {
		if err := os.MkdirAll(filepath.Dir(n.path(path)), 0o755); err != nil {
			panic(err)
		}
		if err := os.WriteFile(n.path(path), []byte(text+"\n"), 0o600); err != nil {
			panic(err)
		}
	}
}

// open makes a session, as the kernel does.
func (n *storageNet) open(target, portal, iface string) int {
	for i := 1; ; i++ {
		s := fmt.Sprint("session", i)
		if _, err := os.Lstat(n.path("sys/class/iscsi_session", s)); err == nil {
			continue
		}
		host := n.path("sys/devices", fmt.Sprint("host", i), s)
		address, port, err := net.SplitHostPort(portal)
		if err != nil {
			panic(err)
		}
		n.must(map[string]string{
			"sys/class/iscsi_connection/connection" + strconv.Itoa(i) + ":0/persistent_address": address,
			"sys/class/iscsi_connection/connection" + strconv.Itoa(i) + ":0/persistent_port":    port,
			"portals/" + s: portal,
			"sys/class/iscsi_session/" + s + "/ifacename":  iface,
			"sys/class/iscsi_session/" + s + "/targetname": target,
		})
		if err := os.MkdirAll(host, 0o755); err != nil {
			panic(err)
		}
		if err := os.Symlink(host, n.path("sys/class/iscsi_session", s, "device")); err != nil {
			panic(err)
		}
		return i
	}
}

// show has a session's disk come, if its target has it.
func (n *storageNet) show(session int, lun string) error {
	s := fmt.Sprint("session", session)
	target := n.Targets[n.text("sys/class/iscsi_session", s, "targetname")]
	if target == nil || target.Disks[lun] == "" {
		return nil
	}
	name := fmt.Sprintf("sd%d-%s", session, lun)
	n.must(map[string]string{"sys/block/" + name + "/device/delete": ""})
	at := n.path("sys/devices", fmt.Sprint("host", session), s, fmt.Sprintf("target%d:0:0", session),
		fmt.Sprintf("%d:0:0:%s", session, lun), "block", name)
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	time.Sleep(n.Late)
	if err := os.Symlink(target.Disks[lun], n.path("dev", name)); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// closeSession ends one, with its disks.
func (n *storageNet) closeSession(s string) {
	number := strings.TrimPrefix(s, "session")
	disks, _ := filepath.Glob(n.path("dev", "sd"+number+"-*"))
	for _, path := range append(disks, n.path("sys/class/iscsi_session", s), n.path("sys/devices", "host"+number),
		n.path("sys/class/iscsi_connection", "connection"+number+":0")) {
		_ = os.RemoveAll(path)
		_ = os.RemoveAll(n.path("sys/block", filepath.Base(path)))
	}
}

// answer is what iscsiadm does, as far as the agent uses it.
func (n *storageNet) answer(agent int, args []string) (code int) {
	f, err := os.OpenFile(n.path("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = fmt.Fprintln(f, strings.Join(args, " "))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		panic(err)
	}
	die := n.Kill > 0 && strings.Count(n.log(), "\n") == n.Kill
	if !die || n.After {
		code = n.run(args)
	}
	if die {
		_ = syscall.Kill(agent, syscall.SIGKILL)
	}
	return code
}

func (n *storageNet) run(args []string) int {
	o := map[string]string{}
	for i := 0; i < len(args); i++ {
		if strings.HasPrefix(args[i], "--") {
			o[args[i]] = "yes"
		} else if i++; i < len(args) {
			o[args[i-1]] = args[i]
		}
	}
	switch o["-m"] + " " + o["-o"] {
	case "iface show", "iface new", "iface update", "iface delete":
		return n.iface(o)
	case "node new", "node update", "node delete":
		return n.nodeRecord(o)
	case "node ":
		if o["--logout"] != "" {
			return n.logoutAll(o)
		}
		return n.login(o)
	case "discoverydb new", "discoverydb delete", "discoverydb nonpersistent":
		return n.discovery(o)
	}
	fmt.Fprintln(&n.out, "unknown:", args)
	return 7
}

func (n *storageNet) iface(o map[string]string) int {
	record := n.path("db/ifaces", o["-I"])
	text, err := os.ReadFile(record)
	if o["-I"] == "default" || o["-I"] == "other" {
		text, err = []byte("# BEGIN RECORD\niface.iscsi_ifacename = "+o["-I"]+
			"\niface.transport_name = tcp\niface.net_ifacename = <empty>\niface.mtu = 0\n# END RECORD\n"), nil
		if o["-I"] == "other" {
			text = []byte(strings.Replace(string(text), "mtu = 0", "mtu = 9000", 1))
		}
	}
	switch {
	case o["-o"] == "new":
		n.must(map[string]string{"db/ifaces/" + o["-I"]: "# BEGIN RECORD\niface.iscsi_ifacename = " + o["-I"] +
			"\niface.transport_name = tcp\niface.mtu = 0\n# END RECORD"})
	case err != nil:
		fmt.Fprintln(&n.out, "iscsiadm: Could not read iface info for", o["-I"])
		return 7
	case o["-o"] == "show":
		n.out.Write(text)
	case o["-o"] == "update":
		text := setInRecord(string(text), map[string]string{o["-n"]: o["-v"]})
		n.must(map[string]string{"db/ifaces/" + o["-I"]: text})
	default:
		_ = os.Remove(record)
	}
	return 0
}

// records are the files of node records: ADDRESS,PORT[,TAG/IFACE].
func (n *storageNet) records(o map[string]string) []string {
	portal, _, _ := strings.Cut(o["-p"], ",")
	name := "*"
	if portal != "" {
		name = fileOf(portal)
	}
	tagged, _ := filepath.Glob(n.path("db/nodes", o["-T"], name+",*", o["-I"]))
	flat, _ := filepath.Glob(n.path("db/nodes", o["-T"], name))
	return append(tagged, slices.DeleteFunc(flat, func(path string) bool { return !isFile(path) })...)
}

func (n *storageNet) nodeRecord(o map[string]string) int {
	if o["-o"] == "new" {
		portal, tag, tagged := strings.Cut(o["-p"], ",")
		at := "db/nodes/" + o["-T"] + "/" + fileOf(portal)
		if tagged {
			at += "," + tag + "/" + o["-I"]
		}
		n.must(map[string]string{at: "# BEGIN RECORD\nnode.session.scan = auto\n" +
			"node.session.auth.authmethod = None\n# END RECORD"})
		return 0
	}
	found := n.records(o)
	if len(found) == 0 {
		fmt.Fprintln(&n.out, "iscsiadm: No records found")
		return 21
	}
	for _, path := range found {
		if o["-o"] == "delete" {
			_ = os.Remove(path)
			_ = os.Remove(filepath.Dir(path))
			_ = os.Remove(filepath.Dir(filepath.Dir(path)))
			continue
		}
		text, _ := os.ReadFile(path)
		next := setInRecord(string(text), map[string]string{o["-n"]: o["-v"]})
		if err := os.WriteFile(path, []byte(next), 0o600); err != nil {
			panic(err)
		}
	}
	return 0
}

// values reads a record.
func (n *storageNet) values(path string) map[string]string {
	values := map[string]string{}
	text, _ := os.ReadFile(path)
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " = "); ok {
			values[name] = value
		}
	}
	return values
}

func (n *storageNet) login(o map[string]string) int {
	found := n.records(o)
	if len(found) == 0 {
		fmt.Fprintln(&n.out, "iscsiadm: No records found")
		return 21
	}
	has := n.values(found[0])
	target, portal := n.Targets[o["-T"]], n.Portals[o["-p"]]
	login := has["node.session.auth.username"] + ":" + has["node.session.auth.password"]
	switch {
	case n.NoDaemon:
		return 20
	case portal == nil || portal.Down || target == nil:
		fmt.Fprintln(&n.out, "iscsiadm: initiator reported error (8 - connection timed out)")
		return 8
	case target.Login != "" && (login != target.Login || has["node.session.auth.authmethod"] != "CHAP"):
		fmt.Fprintln(&n.out, "iscsiadm: initiator reported error (24 - iSCSI login failed: authorization)")
		return 24
	case slices.Contains(n.sessions(), o["-I"]+" "+o["-T"]+" "+o["-p"]):
		return 15
	}
	session := n.open(o["-T"], o["-p"], o["-I"])
	if has["node.session.scan"] != "manual" {
		for lun := range target.Disks {
			_ = n.show(session, lun)
		}
	}
	return 0
}

func (n *storageNet) logoutAll(o map[string]string) int {
	code := 21
	entries, _ := os.ReadDir(n.path("sys/class/iscsi_session"))
	for _, e := range entries {
		if n.text("sys/class/iscsi_session", e.Name(), "targetname") == o["-T"] &&
			n.text("sys/class/iscsi_session", e.Name(), "ifacename") == o["-I"] {
			n.closeSession(e.Name())
			code = 0
		}
	}
	return code
}

func (n *storageNet) discovery(o map[string]string) int {
	record := "db/send_targets/" + fileOf(o["-p"]) + "/st_config"
	portal := n.Portals[o["-p"]]
	has := n.values(n.path(record))
	login := has["discovery.sendtargets.auth.username"] + ":" + has["discovery.sendtargets.auth.password"]
	switch {
	case o["-o"] == "new":
		n.must(map[string]string{record: "# BEGIN RECORD\ndiscovery.startup = manual\n# END RECORD"})
		return 0
	case o["-o"] == "delete":
		_ = os.Remove(n.path(record))
		_ = os.Remove(filepath.Dir(n.path(record)))
		return 0
	case portal == nil || portal.Down:
		fmt.Fprintln(&n.out, "iscsiadm: Could not perform SendTargets discovery: encountered connection failure")
		return 4
	case portal.Search != "" && login != portal.Search:
		return 24
	}
	for _, target := range slices.Sorted(maps.Keys(n.Targets)) {
		for _, p := range slices.Sorted(maps.Keys(n.Portals)) {
			fmt.Fprintf(&n.out, "%s,%d %s\n", p, n.Portals[p].Tag, target)
		}
	}
	return 0
}

// fakeMultipath forgets a device of dm-multipath.
func fakeMultipath(args []string) {
	n := readNet(os.Getenv(fakeState))
	name := filepath.Base(args[len(args)-1])
	holders, _ := filepath.Glob(n.path("sys/block/*/holders", name))
	for _, path := range append(holders, n.path("sys/block", name), n.path("dev", name)) {
		_ = os.RemoveAll(path)
	}
	os.Exit(0)
}

// loopDevice is a disk of so many bytes, with nothing on it.
func loopDevice(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("loop devices need root")
	}
	file := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, 16<<20); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", "--find", "--show", file).CombinedOutput()
	if err != nil {
		t.Skipf("this machine has no loop devices: %v %s", err, out)
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", device).CombinedOutput(); err != nil {
			t.Errorf("losetup --detach %s: %v %s", device, err, out)
		}
	})
	return device
}
