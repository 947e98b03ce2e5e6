package oci

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/shoal-project/shoal/agent/process"
)

// hole is a known way out of a container by a fault of its OCI runtime.
type hole struct {
	names string
	// fixed are the first versions without it, one a branch that got the fix, in
	// order. Later branches have it too.
	fixed []string
	// debian is the package version with the fix, where Debian brought it to an
	// older version.
	debian string
	// needs is the word of the runtime's --version without which it is not open.
	needs string
}

// holes are from the projects' advisories. crun was not open to runc's of 2025
// (containers/crun#1906); those of 2026 need a container without a /dev of its
// own, which every container has here.
var holes = map[string][]hole{
	"runc": {
		{names: "CVE-2019-5736", fixed: []string{"1.0.0-rc7"}},
		{names: "CVE-2021-30465", fixed: []string{"1.0.0-rc95"}},
		{names: "CVE-2024-21626", fixed: []string{"1.1.12"}, debian: "1.1.5+ds1-1+deb12u1"},
		{names: "CVE-2025-31133, CVE-2025-52565, CVE-2025-52881", fixed: []string{"1.2.8", "1.3.3", "1.4.0-rc.3"}},
		{names: "CVE-2026-41579", fixed: []string{"1.3.6", "1.4.3", "1.5.0-rc.3"}},
	},
	"crun": {
		{names: "CVE-2019-18837", fixed: []string{"0.10.5"}},
		{names: "CVE-2025-24965", fixed: []string{"1.20"}, needs: "+LIBKRUN"},
	},
}

// Limits of what a program says of its version.
const (
	versionWait  = 10 * time.Second
	versionBytes = 16 << 10
)

// KnownHoles says which known ways out of a container the runtime's version
// has, and what closes them; "" for none, and for programs that are not runc
// or crun.
func (r Runtime) KnownHoles(ctx context.Context) (string, error) {
	name := filepath.Base(r.Path)
	if holes[name] == nil {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, versionWait)
	defer cancel()
	out := &process.Output{Limit: versionBytes}
	args := []string{"--version"}
	if r.Root != "" { // else crun makes a directory of its own in /run for that, too
		args = []string{"--root", r.Root, "--version"}
	}
	cmd := exec.CommandContext(ctx, r.Path, args...)
	cmd.Stdout, cmd.WaitDelay = out, time.Second
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s --version: %w", r.Installed(), err)
	}
	return holesOf(name, out.String())
}

// holesOf reads the output of --version: "runc version 1.1.5+ds1" and a line
// each for the rest, of which "commit: " is the package's version on Debian.
func holesOf(name, output string) (string, error) {
	text, commit := "", ""
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if v, ok := strings.CutPrefix(line, name+" version "); ok && text == "" {
			text = v
		}
		if v, ok := strings.CutPrefix(line, "commit: "); ok {
			commit = v
		}
	}
	have, ok := parseVersion(text)
	if !ok {
		return "", fmt.Errorf("%s does not tell its version: %.100q", name, output)
	}
	var open []string
	for _, h := range holes[name] {
		if h.fixedIn(have) || h.backported(commit) || !strings.Contains(output, h.needs) {
			continue
		}
		open = append(open, fmt.Sprintf("%s (fixed in %s)", h.names, strings.Join(h.fixed, ", ")))
	}
	return strings.Join(open, "; "), nil
}

func (h hole) fixedIn(have version) bool {
	for i, text := range h.fixed {
		fix, _ := parseVersion(text)
		last := i == len(h.fixed)-1
		if !have.less(fix) && (last || have[0] == fix[0] && have[1] == fix[1]) {
			return true
		}
	}
	return false
}

// backported tells whether the package is the one that Debian fixed, or a later
// update of it: of 1.1.5+ds1-1+deb12u1 that is 1.1.5+ds1-1+deb12u and a number.
func (h hole) backported(commit string) bool {
	at := strings.LastIndexByte(h.debian, 'u')
	if at < 0 {
		return false
	}
	rest, ok := strings.CutPrefix(commit, h.debian[:at+1])
	if !ok {
		return false
	}
	var have, fix int
	_, err := fmt.Sscanf(rest+" "+h.debian[at+1:], "%d %d", &have, &fix)
	return err == nil && have >= fix
}

// version is major, minor, patch and the number of the release candidate.
type version [4]int

// released is the candidate's number of what is none.
const released = 1 << 30

// parseVersion reads 1.1.5+ds1, 1.20, 1.0.0-rc95, 1.4.0-rc.3 and 1.0.0~rc93.
func parseVersion(s string) (version, bool) {
	s, _, _ = strings.Cut(s, "+")
	s, candidate, isCandidate := strings.Cut(strings.Replace(s, "~", "-", 1), "-")
	v := version{3: released}
	for i, part := range strings.SplitN(s, ".", 3) {
		if n, err := fmt.Sscanf(part, "%d", &v[i]); err != nil || n != 1 || v[i] < 0 {
			return v, false
		}
	}
	if isCandidate {
		n := 0
		if _, err := fmt.Sscanf(strings.TrimPrefix(strings.TrimPrefix(candidate, "rc"), "."), "%d", &n); err == nil {
			v[3] = n
		}
	}
	return v, true
}

func (v version) less(w version) bool {
	for i := range v {
		if v[i] != w[i] {
			return v[i] < w[i]
		}
	}
	return false
}
