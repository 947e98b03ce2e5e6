package volume

import (
	"strings"
	"testing"
)

// FuzzRecord: whatever a record has, values are set, once, and nothing else changes.
func FuzzRecord(f *testing.F) {
	f.Add("# BEGIN RECORD\nnode.name = a\nnode.session.auth.password = old\n# END RECORD\n", "secret")
	f.Add("", "=")
	f.Add("node.session.auth.password\n\r# END RECORD", " x")
	f.Fuzz(func(t *testing.T, record, value string) {
		const name = "node.session.auth.password"
		if !oneValue(value) || len(record) > recordSize {
			return
		}
		got := setInRecord(record, map[string]string{name: value})
		if again := setInRecord(got, map[string]string{name: value}); again != got {
			t.Errorf("set twice: %q, then %q", got, again)
		}
		count := 0
		for line := range strings.Lines(got) {
			if key, is, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "="); strings.TrimSpace(key) == name {
				count++
				if is != " "+value {
					t.Errorf("the value is %q", is)
				}
			} else if !strings.Contains(record, strings.TrimSuffix(line, "\n")) {
				t.Errorf("%q is new", line)
			}
		}
		if count != 1 {
			t.Errorf("it is set %d times: %q", count, got)
		}
		for key, is := range recordIn(got) {
			if !strings.HasPrefix(key, "iface.") || !oneValue(is) {
				t.Errorf("read %q = %q", key, is)
			}
		}
	})
}

// FuzzPortals: what a portal tells becomes arguments and file names.
func FuzzPortals(f *testing.F) {
	f.Add("192.0.2.1:3260,1 " + targetA + "\n[2001:db8::2]:3260,2 " + targetA + "\n")
	f.Add("192.0.2.1:3260,-1 ../x\niscsiadm: no\n")
	f.Fuzz(func(t *testing.T, output string) {
		portals, targets := portalsIn(output, targetA)
		for portal, tag := range portals {
			if strings.ContainsAny(portal+tag, "/ \n") || !strings.HasPrefix(tag, ",") || strings.Contains(tag, "-") {
				t.Errorf("%q%q", portal, tag)
			}
		}
		for _, name := range targets {
			if !safeName(name) {
				t.Errorf("%q", name)
			}
		}
	})
}
