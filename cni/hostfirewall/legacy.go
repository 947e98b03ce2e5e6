package hostfirewall

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/coreos/go-iptables/iptables"

	"github.com/shoal-project/shoal/cni/nft"
)

// legacy is the old home of iptables, by family: where the kernel names the tables that
// are there, and the program.
var legacy = map[nft.Family]struct {
	tables, program string
	protocol        iptables.Protocol
}{
	nft.V4: {"/proc/thread-self/net/ip_tables_names", "iptables-legacy", iptables.ProtocolIPv4},
	nft.V6: {"/proc/thread-self/net/ip6_tables_names", "ip6tables-legacy", iptables.ProtocolIPv6},
}

// lockTime is for how many seconds the program waits for others of its kind.
const lockTime = 5

// inLegacy has the chains of the old iptables hold what they need.
func inLegacy(f nft.Family, prefix string, want map[string][]rule) (changed bool, err error) {
	home := legacy[f]
	names, err := os.ReadFile(home.tables)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil // the kernel has none
	case err != nil:
		return false, err
	case !slices.Contains(strings.Fields(string(bytes.TrimSpace(names))), table):
		return false, nil
	}
	program, err := iptables.New(iptables.IPFamily(home.protocol), iptables.Timeout(lockTime),
		iptables.Path(home.program))
	if err != nil {
		return false, fmt.Errorf("rules of %s are in force, which takes the program to change: %w", home.program, err)
	}
	var errs []error
	for _, chain := range chains {
		done, err := inLegacyChain(program, chain, prefix, want[chain])
		changed, errs = changed || done, append(errs, err)
	}
	return changed, errors.Join(errs...)
}

func inLegacyChain(program *iptables.IPTables, chain, prefix string, want []rule) (changed bool, err error) {
	lines, err := program.List(table, chain)
	if err != nil {
		return false, err
	}
	ours, comments, others, accepts := parseList(lines, prefix)
	want = needed(want, accepts, others)
	if have(want, comments) {
		return false, nil
	}
	for _, r := range ours {
		if err := program.Delete(table, chain, r...); err != nil {
			return true, err
		}
	}
	for _, r := range slices.Backward(want) {
		args := append(slices.Clone(r.args), "-m", "comment", "--comment", r.comment, "-j", "ACCEPT")
		if err := program.Insert(table, chain, 1, args...); err != nil {
			return true, err
		}
	}
	return true, nil
}

// parseList reads what `iptables -S CHAIN` says: rules of ours, as arguments, their
// comments, how many others there are, and whether the policy is to accept.
func parseList(lines []string, prefix string) (ours [][]string, comments []string, others int, accepts bool) {
	for _, line := range lines {
		words := strings.Fields(line)
		if len(words) < 3 {
			continue
		}
		if words[0] == "-P" {
			accepts = words[2] == "ACCEPT"
			continue
		}
		at := slices.Index(words, "--comment") + 1
		if at == 0 || at == len(words) {
			others++
			continue
		}
		words[at] = strings.Trim(words[at], `"`) // ours have no space, nor anything that is escaped
		if !strings.HasPrefix(words[at], prefix) {
			others++
			continue
		}
		ours, comments = append(ours, words[2:]), append(comments, words[at])
	}
	return ours, comments, others, accepts
}
