package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/tests/harness"
	"github.com/shoal-project/shoal/tests/upstream"
)

var k9s = subject{
	name: "k9s",
	software: []software{{
		name:     "k9s",
		module:   "github.com/derailed/k9s@v0.50.18",
		programs: []upstream.Program{{Name: "k9s", Package: "."}},
	}},
	run: runK9s,
}

func runK9s(r *rig) {
	r.check("on a terminal it lists pods and nodes, describes, shows a log", func() (string, error) {
		if err := r.apply("k9s.yaml"); err != nil {
			return "", err
		}
		if err := r.rollout("k9s", "deployment/fish"); err != nil {
			return "", err
		}
		pod, err := r.do("-n k9s get pods -o jsonpath={.items[0].metadata.name}")()
		if err != nil {
			return "", err
		}
		t, err := r.terminal(filepath.Join(r.cache, "programs", "k9s"), "--kubeconfig", r.Kubeconfig(), "-n", "k9s",
			"--command", "pods", "--logoless", "--splashless")
		if err != nil {
			return "", err
		}
		defer t.close()
		for _, step := range []struct{ keys, shows string }{
			{"", pod},
			{"d", "Service Account"}, // describes
			{"\x1b", pod},            // back
			{"l", "a fish swims"},    // the log
			{"\x1b", pod},
			{":nodes\r", nodes[1]},
			{":configmaps\r", "kube-root-ca.crt"},
			{":deployments\r", "fish"},
		} {
			if err := t.do(step.keys, step.shows); err != nil {
				return "", err
			}
		}
		if err := t.do(":quit\r", ""); err != nil {
			return "", err
		}
		return pod, t.wait(30 * time.Second)
	})
}

// terminal is a program on a terminal of its own.
type terminal struct {
	cmd    *exec.Cmd
	master *os.File
	ended  chan error

	mu     sync.Mutex
	screen strings.Builder // all that was written, since the last keys
}

// terminal starts a program on the first machine.
func (r *rig) terminal(program string, args ...string) (*terminal, error) {
	master, slave, err := openTerminal()
	if err != nil {
		return nil, err
	}
	defer slave.Close()
	t := &terminal{cmd: harness.Command(r.NetNS, program, args...), master: master, ended: make(chan error, 1)}
	t.cmd.Stdin, t.cmd.Stdout, t.cmd.Stderr = slave, slave, slave
	t.cmd.Env = append(os.Environ(), "TERM=xterm-256color", "HOME="+r.work, "EDITOR=true",
		"XDG_CONFIG_HOME="+r.work, "XDG_DATA_HOME="+r.work, "XDG_STATE_HOME="+r.work, "XDG_CACHE_HOME="+r.work)
	t.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := t.cmd.Start(); err != nil {
		master.Close()
		return nil, err
	}
	go func() { _, _ = io.Copy(t, master) }() // until the terminal is closed
	go func() { t.ended <- t.cmd.Wait() }()
	return t, nil
}

// openTerminal makes a terminal of 50 lines of 200 columns.
func openTerminal() (master, slave *os.File, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			master.Close()
		}
	}()
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, fmt.Errorf("unlock the terminal: %w", err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: 200}); err != nil {
		return nil, nil, fmt.Errorf("size of the terminal: %w", err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		return nil, nil, fmt.Errorf("number of the terminal: %w", err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	return master, slave, err
}

// Write takes what the program draws.
func (t *terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.screen.Write(p)
}

var escapes = regexp.MustCompile(`\x1b(\[[0-9;?]*[a-zA-Z]|[()][A-Z0-9]|\][^\x07]*\x07|[=>])`)

// drawn is the text that was drawn since the last keys.
func (t *terminal) drawn() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return escapes.ReplaceAllString(t.screen.String(), " ")
}

// do types keys, and waits until the word is drawn.
func (t *terminal) do(keys, word string) error {
	t.mu.Lock()
	if keys != "" {
		t.screen.Reset()
	}
	t.mu.Unlock()
	if _, err := t.master.WriteString(keys); err != nil {
		return err
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		drawn := t.drawn()
		if strings.Contains(drawn, word) {
			return nil
		}
		select {
		case err := <-t.ended:
			t.ended <- err
			return fmt.Errorf("after %q it ended (%w):\n%s", keys, err, drawn)
		default:
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after %q it does not show %q:\n%s", keys, word, drawn)
		}
	}
}

// wait waits until the program has ended.
func (t *terminal) wait(limit time.Duration) error {
	select {
	case err := <-t.ended:
		t.ended <- err
		return err
	case <-time.After(limit):
		return errors.New("it does not end:\n" + t.drawn())
	}
}

// close ends the program, if it runs, and the terminal.
func (t *terminal) close() {
	_ = t.cmd.Process.Kill()
	<-t.ended
	_ = t.master.Close()
}
