// Package nfttest tells tests what the kernel's nftables hold, by nft(8): what
// is compared with it was told to the kernel by other code than reads it.
package nfttest

import (
	"encoding/hex"
	"fmt"
	"maps"
	"math/bits"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Dump returns a table of this network namespace, such as "ip shoal", in the
// form of nft.Objects, sorted: it does not depend on the table's history.
func Dump(table string) (string, error) {
	family, name, _ := strings.Cut(table, " ")
	cmd := exec.Command("nft", "-y", "list", "table", family, name)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("nft list table %s: %w: %s", table, err, stderr.String())
	}
	d := dump{sets: map[string]string{}}
	for line := range strings.Lines(string(out)) {
		d.read(strings.TrimSpace(line))
	}
	return d.String(table), nil
}

// dump gathers what nft lists, block by block.
type dump struct {
	kind, name string   // of the block; empty between two
	lines      []string // in it
	elements   bool     // the line before was of elements, and the last was not yet

	chains, elems []string
	sets          map[string]string // by name
}

func (d *dump) read(line string) {
	words := strings.Fields(line)
	switch {
	case len(words) == 3 && words[2] == "{" && words[0] != "table":
		d.kind, d.name, d.lines = words[0], words[1], nil
	case line == "}":
		d.end()
	case d.elements || strings.HasPrefix(line, "elements = {"):
		d.readElements(line)
	case line != "":
		d.lines = append(d.lines, line)
	}
}

func (d *dump) readElements(line string) {
	rest, last := strings.CutSuffix(strings.TrimPrefix(line, "elements = {"), "}")
	d.elements = !last
	for e := range strings.SplitSeq(rest, ",") {
		if e = strings.TrimSpace(lifetimes.ReplaceAllString(e, "")); e != "" {
			d.elems = append(d.elems, "element "+d.name+" "+e)
		}
	}
}

// What changes by itself: how long elements live and what counters have counted.
var (
	lifetimes = regexp.MustCompile(` (timeout|expires) \S+`)
	counted   = regexp.MustCompile(`counter packets \d+ bytes \d+`)
)

// numbers are the keys of maps without a name. nft prints them with their bytes
// swapped: google/nftables says of these maps that their keys are big-endian.
var numbers = regexp.MustCompile(`[{,] \d+ : `)

func swap(s string) string {
	var n uint32
	_, _ = fmt.Sscan(s[1:], &n)
	return fmt.Sprintf("%s %d : ", s[:1], bits.ReverseBytes32(n))
}

// constants are addresses in a key; nft does not know what they are.
var constants = regexp.MustCompile(`0x[0-9a-f]+ \[invalid type\]`)

func address(s string) string {
	digits, _, _ := strings.Cut(strings.TrimPrefix(s, "0x"), " ")
	size := 4
	if len(digits) > 2*size {
		size = 16
	}
	bytes, _ := hex.DecodeString(strings.Repeat("0", 2*size-len(digits)) + digits)
	a, _ := netip.AddrFromSlice(bytes)
	return a.String()
}

func (d *dump) end() {
	switch d.kind {
	case "chain":
		text := "chain " + d.name
		for _, line := range d.lines {
			line = strings.TrimSuffix(line, "; policy accept;")
			line = counted.ReplaceAllString(line, "counter")
			text += "\n  " + constants.ReplaceAllStringFunc(numbers.ReplaceAllStringFunc(line, swap), address)
		}
		d.chains = append(d.chains, text)
	case "set", "map":
		d.sets[d.name] = d.kind + " " + d.name + " " + describe(d.lines)
	}
	d.kind = ""
}

// describe puts what a set is like into one line, without what follows from the
// rest.
func describe(lines []string) string {
	var kept []string
	for _, line := range lines {
		word, rest, _ := strings.Cut(line, " ")
		switch word {
		case "flags":
			continue
		case "timeout":
			line = word + " " + duration(rest)
		}
		kept = append(kept, line)
	}
	return strings.Join(kept, " ")
}

// duration reads nft's, which has days, and prints Go's.
func duration(s string) string {
	days, rest, found := strings.Cut(s, "d")
	if !found {
		days, rest = "0", s
	}
	var n int
	_, _ = fmt.Sscan(days, &n)
	d, _ := time.ParseDuration("0" + rest)
	return (d + time.Duration(n)*24*time.Hour).String()
}

func (d *dump) String(table string) string {
	slices.Sort(d.chains)
	slices.Sort(d.elems)
	lines := append([]string{"table " + table}, d.chains...)
	for _, name := range slices.Sorted(maps.Keys(d.sets)) {
		lines = append(lines, d.sets[name])
	}
	lines = append(lines, d.elems...)
	return strings.Join(lines, "\n") + "\n"
}

// Listed is a table's text as nft lists it: without what follows, for nft, from
// the rest of a rule.
func Listed(text string) string {
	return implied.ReplaceAllString(text, "$2")
}

var implied = regexp.MustCompile(`(meta l4proto tcp|meta protocol ip|meta protocol arp) (reject with tcp|ether daddr|iifname)`)
