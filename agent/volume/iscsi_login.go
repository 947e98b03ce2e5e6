package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// What iscsiadm answers (iscsi_err.h of open-iscsi).
const (
	iscsiSessionExists = 15
	iscsiNoDaemon      = 20
	iscsiNothingFound  = 21
	iscsiRefused       = 24
)

// iscsiOutput bounds what iscsiadm may tell, in bytes: the records of an interface,
// and the portals of all targets that a server has.
const iscsiOutput = 256 << 10

// searchTimeout is how long a portal may take to tell its targets.
const searchTimeout = 30 * time.Second

// iscsiadm runs it. It is waited for to its end, whatever ctx says: who ended it would
// not know whether iscsid goes on.
func (f iscsiFinder) iscsiadm(ctx context.Context, args ...string) (output string, code int, err error) {
	if err := ctx.Err(); err != nil {
		return "", -1, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), mountTimeout)
	defer cancel()
	return f.run(ctx, args)
}

func (f iscsiFinder) run(ctx context.Context, args []string) (output string, code int, err error) {
	output, err = programUpTo(ctx, iscsiOutput, "iscsiadm", args...)
	var ended *exec.ExitError
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return "", -1, errors.New("the program iscsiadm is not installed on this node: install open-iscsi")
	case errors.As(err, &ended):
		code = ended.ExitCode()
	case err != nil:
		code = -1
	}
	if err != nil {
		err = fmt.Errorf("iscsiadm %s failed: %w\nOutput: %s%s", strings.Join(args, " "), err,
			output[:min(len(output), programOutput)], f.hint(code))
	}
	return output, code, err
}

// hint tells what to do about an answer of iscsiadm.
func (f iscsiFinder) hint(code int) string {
	if _, err := os.Stat(filepath.Join(f.sys, "class/iscsi_transport")); errors.Is(err, fs.ErrNotExist) {
		return "\nThe kernel of this node has no iSCSI: load its module iscsi_tcp."
	}
	switch code {
	case iscsiNoDaemon:
		return "\nThe daemon iscsid does not run on this node: start it."
	case iscsiRefused:
		return "\nThe target does not take the name or the password: see iscsi.secretRef, chapAuthSession and initiatorName."
	}
	return ""
}

// login logs in to a target.
type login struct {
	iscsiFinder
	*iscsiVolume
	volume *Volume
	// credentials are those of the Secret, read once.
	credentials map[string]string
	// told are the portals of the target that were heard of, with their groups' tags.
	told map[string]string
}

// at logs in at one portal.
func (l *login) at(ctx context.Context, portal string) error {
	if err := l.readSecret(ctx); err != nil {
		return err
	}
	if err := l.makeIface(ctx); err != nil {
		return err
	}
	if err := l.search(ctx, portal); err != nil {
		return err
	}
	node := []string{"-m", "node", "-T", l.target, "-p", portal, "-I", l.iface()}
	if err := l.makeNode(ctx, portal, node); err != nil {
		return err
	}
	_, code, err := l.iscsiadm(ctx, append(node, "--login")...)
	if err != nil && code != iscsiSessionExists {
		_, _, _ = l.iscsiadm(ctx, append(node, "-o", "delete")...) // the error before tells more
		return err
	}
	return nil
}

// makeNode makes the record of a target at a portal anew. The node logs in to it by
// itself never, and looks for no disks.
func (l *login) makeNode(ctx context.Context, portal string, node []string) error {
	made := slices.Clone(node)
	made[5] = portal + l.told[portal]
	if _, _, err := l.iscsiadm(ctx, append(made, "-o", "new")...); err != nil {
		return err
	}
	if err := l.set(ctx, node, "node.startup", "manual"); err != nil {
		return err
	}
	// A portal that does not answer is left soon: a pod that waits is started again.
	if err := l.set(ctx, node, "node.session.initial_login_retry_max", "1"); err != nil {
		return err
	}
	// An open-iscsi before 2.0.874 does not know it, and looks for all disks.
	_ = l.set(ctx, node, "node.session.scan", "manual")
	if !l.chap {
		return nil
	}
	file, err := l.nodeFile(portal)
	if err != nil {
		return err
	}
	return l.writeSecrets(file, "node.session.auth.")
}

func (l *login) set(ctx context.Context, node []string, name, value string) error {
	_, _, err := l.iscsiadm(ctx, append(node, "-o", "update", "-n", name, "-v", value)...)
	return err
}

// search asks a portal for its targets, unless another told of it already. What it
// tells is the tag of the portal's group, by which records of different interfaces are
// kept apart; a portal that is known by another address is logged in to without.
func (l *login) search(ctx context.Context, portal string) error {
	if l.told[portal] != "" {
		return nil
	}
	if l.chapSearch {
		if err := l.makeSearch(ctx, portal); err != nil {
			return err
		}
	}
	// This may be cut off: iscsiadm asks by itself, and leaves nothing.
	asked, cancel := context.WithTimeout(ctx, searchTimeout)
	defer cancel()
	out, _, err := l.run(asked, append(searchRecord(portal), "-I", l.iface(), "-o", "nonpersistent", "--discover"))
	if err != nil {
		return err
	}
	portals, targets := portalsIn(out, l.target)
	if len(portals) == 0 {
		return fmt.Errorf("the portal has no such target: it has %s", strings.Join(targets[:min(len(targets), 10)], ", "))
	}
	if l.told == nil {
		l.told = map[string]string{}
	}
	for p, tag := range portals {
		l.told[p] = tag
	}
	if l.chapSearch && slices.Contains(l.volume.Disk.Searches, portal) {
		return l.dropSearch(ctx, portal) // the password is not needed any more
	}
	return nil
}

// makeSearch makes the record that tells how a portal is asked. One of the machine's
// stays, with the password that the volume names.
func (l *login) makeSearch(ctx context.Context, portal string) error {
	if !isFile(l.searchFile(portal)) && !slices.Contains(l.volume.Disk.Searches, portal) {
		if err := l.users.searches(l.volume, portal); err != nil {
			return err
		}
	}
	if _, _, err := l.iscsiadm(ctx, append(searchRecord(portal), "-o", "new")...); err != nil {
		return err
	}
	return l.writeSecrets(l.searchFile(portal), "discovery.sendtargets.auth.")
}

func (f iscsiFinder) dropSearch(ctx context.Context, portal string) error {
	if !isFile(f.searchFile(portal)) {
		return nil
	}
	_, _, err := f.iscsiadm(ctx, append(searchRecord(portal), "-o", "delete")...)
	return err
}

func searchRecord(portal string) []string {
	return []string{"-m", "discoverydb", "-t", "sendtargets", "-p", portal}
}

// portalsIn reads what a portal told: the portals of a target with ",TAG", and the
// names of all targets.
func portalsIn(output, target string) (portals map[string]string, targets []string) {
	portals = map[string]string{}
	for line := range strings.Lines(output) {
		at, name, ok := strings.Cut(strings.TrimSpace(line), " ")
		portal, tag, tagged := strings.Cut(at, ",")
		address, err := netip.ParseAddrPort(portal)
		if !ok || !tagged || err != nil || tag == "" || len(tag) > 5 || strings.Trim(tag, "0123456789") != "" ||
			!safeName(name) {
			continue
		}
		if !slices.Contains(targets, name) {
			targets = append(targets, name)
		}
		if name == target {
			portals[address.String()] = "," + tag
		}
	}
	return portals, targets
}

// makeIface makes the interface by which the agent logs in: as the one that the volume
// asks for, with the initiator's name of the volume.
func (l *login) makeIface(ctx context.Context) error {
	done, err := l.users.exclusive(ctx, "iscsi interfaces")
	if err != nil {
		return err
	}
	defer done()
	base, _, err := l.iscsiadm(ctx, "-m", "iface", "-I", l.base, "-o", "show")
	if err != nil {
		return fmt.Errorf("iscsi.iscsiInterface: %w", err)
	}
	want := recordIn(base)
	if l.initiator != "" {
		want["iface.initiatorname"] = l.initiator
	}
	has, _, err := l.iscsiadm(ctx, "-m", "iface", "-I", l.iface(), "-o", "show")
	if err != nil {
		if _, _, err := l.iscsiadm(ctx, "-m", "iface", "-I", l.iface(), "-o", "new"); err != nil {
			return err
		}
		if has, _, err = l.iscsiadm(ctx, "-m", "iface", "-I", l.iface(), "-o", "show"); err != nil {
			return err
		}
	}
	return l.changeIface(ctx, recordIn(has), want)
}

// changeIface brings the interface to what it should be. The kind of transport is
// first, since it decides what else there can be.
func (l *login) changeIface(ctx context.Context, has, want map[string]string) error {
	const transport = "iface.transport_name"
	names := []string{transport}
	for name := range want {
		if name != transport && name != "iface.iscsi_ifacename" {
			names = append(names, name)
		}
	}
	slices.Sort(names[1:])
	for _, name := range names {
		if want[name] == has[name] || want[name] == "" || want[name] == "<empty>" {
			continue
		}
		_, _, err := l.iscsiadm(ctx, "-m", "iface", "-I", l.iface(), "-o", "update", "-n", name, "-v", want[name])
		if err != nil {
			return err
		}
	}
	return nil
}

// logout ends all sessions with a target that the agent made, and deletes their
// records. Nothing of them may be left by now.
func (f iscsiFinder) logout(ctx context.Context, i *iscsiVolume) error {
	if _, err := exec.LookPath("iscsiadm"); err != nil && len(f.sessions(i)) == 0 {
		return nil // it was never there
	}
	node := []string{"-m", "node", "-T", i.target, "-I", i.iface()}
	for _, what := range [][]string{{"--logout"}, {"-o", "delete"}} {
		if _, code, err := f.iscsiadm(ctx, append(node, what...)...); err != nil && code != iscsiNothingFound {
			return err
		}
	}
	if left := f.sessions(i); len(left) > 0 {
		return fmt.Errorf("target %s: %s is still there after the logout", i.target, left[0].name)
	}
	return nil
}

// dropIface deletes the agent's interface with its last volume.
func (f iscsiFinder) dropIface(ctx context.Context, v *Volume, i *iscsiVolume) error {
	done, err := f.users.exclusive(ctx, "iscsi interfaces")
	if err != nil {
		return err
	}
	defer done()
	if _, err := exec.LookPath("iscsiadm"); err != nil || len(f.users.using(v, i.sameIface)) > 0 {
		return nil
	}
	if _, _, err := f.iscsiadm(ctx, "-m", "iface", "-I", i.iface(), "-o", "show"); err != nil {
		return nil // it is gone
	}
	_, _, err = f.iscsiadm(ctx, "-m", "iface", "-I", i.iface(), "-o", "delete")
	return err
}
