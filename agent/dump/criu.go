package dump

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	metadata "github.com/checkpoint-restore/checkpointctl/lib"
)

// minCRIU is the oldest CRIU that checkpoints containers of pods, 3.16, as upstream's
// runtimes want it.
const minCRIU = 31600

// Path is what programs that CRIU needs are looked for in, beside the agent's own PATH: it
// calls those of iptables or nft.
func Path() string { return os.Getenv("PATH") + ":/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin" }

// versionWait bounds how long CRIU may take to tell its version.
const versionWait = 10 * time.Second

var versionLine = regexp.MustCompile(`(?m)^Version: (\d+)\.(\d+)(?:\.(\d+))?`)

// CheckCRIU tells why there can be no checkpoints on this node. The words are those of
// CRI-O, which upstream's test knows (test/e2e_node/checkpoint_container.go).
func CheckCRIU(ctx context.Context, container string) error {
	version, err := criuVersion(ctx)
	if err == nil && version < minCRIU {
		err = fmt.Errorf("it is version %d", version)
	}
	if err != nil {
		return fmt.Errorf("CRIU binary not found or too old (<%d). Failed to checkpoint container %s: %w "+
			"(on Debian: apt install criu iptables)", minCRIU, container, err)
	}
	return nil
}

func criuVersion(ctx context.Context) (int, error) {
	program := ""
	for _, dir := range filepath.SplitList(Path()) {
		if p, err := exec.LookPath(filepath.Join(dir, "criu")); err == nil && filepath.IsAbs(p) {
			program = p
			break
		}
	}
	if program == "" {
		return 0, errors.New("criu is not installed")
	}
	ctx, cancel := context.WithTimeout(ctx, versionWait)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, "--version").Output()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", program, err)
	}
	parts := versionLine.FindStringSubmatch(string(out))
	if parts == nil {
		return 0, fmt.Errorf("%s does not tell its version", program)
	}
	n := 0
	for _, p := range parts[1:] {
		v, _ := strconv.Atoi(p) // digits, or none
		n = n*100 + v
	}
	return n, nil
}

// maxComplaints is how many of CRIU's errors are told: the first is the cause.
const maxComplaints = 3

// Complaints are the errors in CRIU's log, "" without any.
func (w *Work) Complaints() string {
	f, err := os.Open(filepath.Join(w.dir, metadata.DumpLogFile))
	if err != nil {
		return ""
	}
	defer f.Close()
	var found []string
	for lines := bufio.NewScanner(f); lines.Scan() && len(found) < maxComplaints; {
		if _, text, ok := strings.Cut(lines.Text(), "Error "); ok {
			found = append(found, strings.TrimSpace(text))
		}
	}
	return strings.Join(found, "; ")
}
