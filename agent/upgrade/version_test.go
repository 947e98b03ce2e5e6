package upgrade

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFits(t *testing.T) {
	for _, c := range []struct{ from, to, why string }{
		{"v1.36.3+shoal", "v1.36.4+shoal", ""},
		{"1.36.3", "v1.36.2", ""}, // within a minor version all read the same
		{"1.36.3", "1.37.0~rc.1+meta", ""},
		{"v1.36.3", "v1.37.9", ""},
		{"v1.36.3", "v1.38.0", "go by v1.37"},
		{"v1.36.3", "v1.35.9", "older minor"},
		{"v1.36.3", "v2.0.0", "major"},
		{"v1.36.3", "1.36", "no version"},
		{"v1.36.3", "v1.36.4;reboot", "no version"},
		{"unknown", "v1.36.4", "this machine's version"},
		{"v1.36.3", "v1.99999999999.4", "no version"},
	} {
		err := Fits(c.from, c.to)
		if (err == nil) != (c.why == "") || err != nil && !strings.Contains(err.Error(), c.why) {
			t.Errorf("from %s to %s: %v, not %q", c.from, c.to, err, c.why)
		}
	}
}

func TestCheck(t *testing.T) {
	here := Package{Deb, "shoal", "1.36.3+a", "amd64"}
	for _, c := range []struct {
		next Package
		why  string
	}{
		{Package{Deb, "shoal", "1.36.4", "amd64"}, ""},
		{Package{Deb, "other", "1.36.4", "amd64"}, "package other"},
		{Package{RPM, "shoal", "1.36.4", "x86_64"}, "form rpm"},
		{Package{Deb, "shoal", "1.36.4", "arm64"}, "for arm64"},
		{here, "installed already"},
		{Package{Deb, "shoal", "1.38.0", "amd64"}, "more than one minor"},
	} {
		err := Check(here, c.next)
		if (err == nil) != (c.why == "") || err != nil && !strings.Contains(err.Error(), c.why) {
			t.Errorf("%+v: %v, not %q", c.next, err, c.why)
		}
	}
	if err := Check(here, here); !errors.Is(err, ErrInstalled) {
		t.Errorf("the same: %v", err)
	}
}

func TestProgram(t *testing.T) {
	for _, c := range []struct{ format, version, want string }{
		{Deb, "1.36.4+fleet.2-1", "v1.36.4+fleet.2"},
		{Deb, "1.37.0~rc.1+meta-1", "v1.37.0-rc.1+meta"},
		{RPM, "1.37.0~rc.1+meta", "v1.37.0-rc.1+meta"},
		{Deb, "1.36.4", "v1.36.4"},
	} {
		if got := (Package{Format: c.format, Version: c.version}).Program(); got != c.want {
			t.Errorf("%s of a %s: %s, not %s", c.version, c.format, got, c.want)
		}
	}
}

func TestFormat(t *testing.T) {
	for text, want := range map[string]string{"!<arch>\ndebian": Deb, "\xed\xab\xee\xdb\x03": RPM, "!<ar": "", "": ""} {
		file := filepath.Join(t.TempDir(), "package")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := format(file); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}

func TestControlOf(t *testing.T) {
	const status = `Package: shoal
Status: install ok installed
Version: 1.36.3
Conffiles:
 /etc/shoal/agent.yaml 0123
 /etc/default/shoal 4567
Description: first
 second
 .
 third

`
	const want = "Package: shoal\nVersion: 1.36.3\nDescription: first\n second\n .\n third\n"
	if got := controlOf(status); got != want {
		t.Errorf("%q", got)
	}
}

func TestSumsOf(t *testing.T) {
	got := sumsOf("\n /etc/shoal/agent.yaml 0123\n /etc/old 4567 obsolete\n\n")
	if len(got) != 1 || got["/etc/shoal/agent.yaml"] != "0123" {
		t.Errorf("%v", got)
	}
}

func TestRecord(t *testing.T) {
	dir := Dir(t.TempDir())
	if r, err := dir.Load(); r != nil || err != nil {
		t.Fatalf("of nothing: %v, %v", r, err)
	}
	if err := dir.Save(&Record{Phase: Watching, To: "v2", Containers: map[string]string{"a": "b"}}); err != nil {
		t.Fatal(err)
	}
	r, err := dir.Load()
	if err != nil || r.Phase != Watching || r.To != "v2" || r.Containers["a"] != "b" {
		t.Errorf("%+v, %v", r, err)
	}
	if err := os.WriteFile(dir.Path(recordFile), []byte(`{"phase": "wat`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := dir.Load(); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("of half a record: %v", err)
	}
}
