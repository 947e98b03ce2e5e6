package host

import (
	"strings"
	"testing"
)

// Numbers of Linux 6.18 and of what comes after it, where those by who reclaims count what
// is taken for limits of groups, too.
const (
	vmstat6 = "nr_free_pages 7\nworkingset_restore_anon 1\nworkingset_restore_file 20\npgpgin 5\nallocstall_dma32 1\n" +
		"allocstall_normal 2\npgsteal_kswapd 100\npgsteal_direct 30\npgsteal_khugepaged 4\npgsteal_proactive 0\n" +
		"pgscan_kswapd 9999\npgsteal_anon 40\npgsteal_file 300\n"
	vmstat7 = "workingset_restore_anon 1\nworkingset_restore_file 20\npgsteal_kswapd 100\npgsteal_direct 236\n" +
		"pgsteal_khugepaged 4\npgsteal_proactive 0\npgsteal_anon 40\npgsteal_file 300\npgpgin 5\n" +
		"allocstall_dma32 1\nallocstall_normal 2\n"
)

func TestReclaim(t *testing.T) {
	for text, want := range map[string]Reclaim{
		vmstat6: {All: 340, Machine: 134, Calls: 3, Restored: 21},
		vmstat7: {All: 340, Machine: 100, Unclear: 240, Calls: 3, Restored: 21},
	} {
		got, err := reclaim(fakeProc(t, map[string]string{"vmstat": text}))
		if err != nil || got != want {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
	}
	for name, bad := range map[string]string{
		"empty":        "",
		"before 5.9":   "workingset_restore 1\npgpgin 5\npgsteal_kswapd 100\npgsteal_direct 30\n",
		"no number":    strings.Replace(vmstat6, "pgsteal_anon 40", "pgsteal_anon x", 1),
		"negative":     strings.Replace(vmstat6, "pgsteal_anon 40", "pgsteal_anon -1", 1),
		"beyond":       strings.Replace(vmstat6, "pgsteal_anon 40", "pgsteal_anon 18446744073709551616", 1),
		"a third word": strings.Replace(vmstat6, "pgsteal_anon 40", "pgsteal_anon 40 pages", 1),
		"too long":     vmstat6 + strings.Repeat("nr_more 1\n", maxVMStat/10),
	} {
		if got, err := reclaim(fakeProc(t, map[string]string{"vmstat": bad})); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if _, err := reclaim(t.TempDir()); err == nil {
		t.Error("no vmstat is no error")
	}
}

func TestReclaimedSince(t *testing.T) {
	for name, tt := range map[string]struct {
		old, now Reclaim
		want     Reclaimed
	}{
		"nothing":          {Reclaim{All: 9, Machine: 9}, Reclaim{All: 9, Machine: 9}, Reclaimed{}},
		"the machine":      {Reclaim{}, Reclaim{All: 9, Machine: 9, Restored: 4}, Reclaimed{9, 0, 4}},
		"a group":          {Reclaim{All: 5}, Reclaim{All: 14, Restored: 9}, Reclaimed{0, 9, 9}},
		"both":             {Reclaim{}, Reclaim{All: 14, Machine: 5}, Reclaimed{5, 9, 0}},
		"unclear, a group": {Reclaim{}, Reclaim{All: 900, Unclear: 900}, Reclaimed{0, 900, 0}},
		"unclear, both": {Reclaim{Calls: 1}, Reclaim{All: 900, Machine: 100, Unclear: 800, Calls: 11},
			Reclaimed{420, 480, 0}},
		"unclear, the machine": {Reclaim{}, Reclaim{All: 900, Unclear: 900, Calls: 1000}, Reclaimed{900, 0, 0}},
		"not at one moment":    {Reclaim{}, Reclaim{All: 5, Machine: 9}, Reclaimed{5, 0, 0}},
		"back":                 {Reclaim{All: 9, Machine: 9, Restored: 9}, Reclaim{}, Reclaimed{}},
	} {
		if got := tt.now.Since(tt.old); got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}

func FuzzVMStat(f *testing.F) {
	f.Add([]byte(vmstat6))
	f.Fuzz(func(t *testing.T, data []byte) {
		parseVMStat(data, func(name string, _ uint64) {
			if name == "" || strings.ContainsAny(name, " \n") {
				t.Errorf("a name %q", name)
			}
		})
	})
}

// This machine's numbers do not run back, and are there at all.
func TestReadReclaim(t *testing.T) {
	old, err := ReadReclaim()
	if err != nil {
		t.Skip(err) // a kernel before 5.9
	}
	now, err := ReadReclaim()
	if err != nil || now.All < old.All || now.Machine < old.Machine || now.Restored < old.Restored {
		t.Errorf("%+v after %+v, %v", now, old, err)
	}
}
