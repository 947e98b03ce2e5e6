package host

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// fakeProc makes a /proc of these files.
func fakeProc(t *testing.T, files map[string]string) string {
	t.Helper()
	proc := t.TempDir()
	for file, text := range files {
		path := filepath.Join(proc, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return proc
}

func TestMemory(t *testing.T) {
	m, err := memory(fakeProc(t, map[string]string{"meminfo": "MemTotal:  2000 kB\nMemFree: 100 kB\nMemAvailable: 500 kB\nBuffers\nSwapTotal: 0 kB\n"}))
	if err != nil || m != (meminfo{total: 2000 << 10, available: 500 << 10}) {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := memory(t.TempDir()); err == nil {
		t.Error("a machine without memory is an error")
	}
}

func TestDefaultInterface(t *testing.T) {
	const head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
	for want, routes := range map[string]string{
		"": "eth1\t0063630A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n",
		"eth0": "eth1\t00000000\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0\n" +
			"eth0\t00000000\tFE63630A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n",
	} {
		if got := defaultInterface(fakeProc(t, map[string]string{"self/net/route": head + routes})); got != want {
			t.Errorf("%q: %q, want %q", routes, got, want)
		}
	}
}

func TestPages(t *testing.T) {
	const text = "nr_free_pages 7\nnr_anon_pages 3\npgfault 200\npgmajfault 4\n"
	p, err := pages(fakeProc(t, map[string]string{"vmstat": text}))
	if want := (Pages{uint64(3 * os.Getpagesize()), 200, 4}); err != nil || p != want {
		t.Errorf("%+v, %v, want %+v", p, err, want)
	}
	for _, bad := range []string{"", "nr_anon_pages 3\npgfault 200\n", "nr_anon_pages x\npgfault 200\npgmajfault 4\n"} {
		if p, err := pages(fakeProc(t, map[string]string{"vmstat": bad})); err == nil {
			t.Errorf("%q is %+v", bad, p)
		}
	}
	if _, err := pages(t.TempDir()); err == nil {
		t.Error("no vmstat is no error")
	}
	if p, err := ReadPages(); err != nil || p.Anonymous == 0 || p.Faults == 0 {
		t.Errorf("this machine: %+v, %v", p, err)
	}
}

func TestTasks(t *testing.T) {
	files := map[string]string{"sys/kernel/pid_max": "1000\n", "sys/kernel/threads-max": "2000\n", "loadavg": "0.1 0.2 0.3 2/950 4711\n"}
	got, err := tasks(fakeProc(t, files))
	if err != nil || got != (Tasks{Count: 950, MaxPID: 1000, MaxThreads: 2000}) || got.Limit() != 1000 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, text := range []string{"", "0.1 0.2 0.3\n", "0.1 0.2 0.3 950 4711\n"} {
		files["loadavg"] = text
		if _, err := tasks(fakeProc(t, files)); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

func TestCPUTime(t *testing.T) {
	got, err := cpuTime(fakeProc(t, map[string]string{"stat": "cpu  1 2 3 400 500 6 7 8 9 10\ncpu0 1 2 3 4\n"}))
	if want := uint64(1+2+3+6+7+8) * uint64(10*time.Millisecond); err != nil || got != want {
		t.Errorf("%d, want %d, %v", got, want, err)
	}
}

func TestParsePressure(t *testing.T) {
	p := ParsePressure([]byte("some avg10=1.50 avg60=0.25 avg300=0.00 total=1234\nfull avg10=0.10 avg60=0.00 avg300=0.00 total=99\n"))
	want := Pressure{Some: PSI{1.5, 0.25, 0, 1234}, Full: PSI{0.1, 0, 0, 99}}
	if p != want {
		t.Errorf("got %+v, want %+v", p, want)
	}
}

// TestThisMachine: what every Linux tells can be read here.
func TestThisMachine(t *testing.T) {
	f, err := Look("/", "192.0.2.1")
	if err != nil || f.CPUs == 0 || f.MemoryBytes == 0 || f.DiskBytes == 0 || f.Kernel == "" || f.BootID == "" ||
		f.IPs[0] != "192.0.2.1" {
		t.Errorf("%+v, %v", f, err)
	}
	if n := MemoryAvailable(); n <= 0 || n > f.MemoryBytes {
		t.Errorf("%d bytes available", n)
	}
	if c, err := ReadTasks(); err != nil || c.Count <= 0 || c.Limit() < c.Count {
		t.Errorf("%+v, %v", c, err)
	}
	if fs, err := Space("/"); err != nil || fs.Available > fs.Bytes || fs.Used > fs.Bytes || fs.InodesFree > fs.Inodes {
		t.Errorf("%+v, %v", fs, err)
	}
	if _, err := Space("/no such directory"); err == nil {
		t.Error("a directory that is not there has space")
	}
	if since := time.Since(BootTime()); since <= 0 {
		t.Errorf("booted %s ago", since)
	}
}
