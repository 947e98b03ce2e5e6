package selinux

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/opencontainers/selinux/go-selinux"
	"github.com/opencontainers/selinux/go-selinux/label"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/agent/beneath"
)

// Options are the parts of a label that a pod asks for; what is empty it leaves open.
type Options struct{ User, Role, Type, Level string }

// Labels are those of one container; both are empty where nothing is labelled.
type Labels struct{ Process, File string }

// Labeler makes labels from options. A nil one is of a node without SELinux.
type Labeler func(Options) (Labels, error)

// New returns the node's Labeler.
func New() Labeler {
	if !selinux.GetEnabled() {
		return nil
	}
	return ofPolicy
}

// ErrNoPolicy is of a policy that knows no containers.
var ErrNoPolicy = errors.New("the SELinux policy has no labels for containers: install container-selinux, or a policy with the file contexts/lxc_contexts")

func ofPolicy(o Options) (Labels, error) {
	var options []string
	for _, part := range []struct{ name, value string }{
		{"user", o.User}, {"role", o.Role}, {"type", o.Type}, {"level", o.Level},
	} {
		if part.value != "" {
			options = append(options, part.name+":"+part.value)
		}
	}
	process, file, err := label.InitLabels(options)
	if err != nil {
		return Labels{}, fmt.Errorf("seLinuxOptions: %w", err)
	}
	// The library keeps a list of levels in use, to give others than those out; here
	// none is asked for.
	selinux.ReleaseLabel(process)
	if process == "" || file == "" {
		return Labels{}, fmt.Errorf("seLinuxOptions: %w", ErrNoPolicy)
	}
	if err := selinux.SecurityCheckContext(process); err != nil {
		return Labels{}, fmt.Errorf("seLinuxOptions: the policy does not know the label %q: %w", process, err)
	}
	return Labels{Process: process, File: file}, nil
}

// categories are how many a level can choose from, as container engines do.
const categories = 1024

// Level is one for a pod that asks for none: two categories of its UID.
func Level(uid string) string {
	sum := sha256.Sum256([]byte(uid))
	a, b := binary.BigEndian.Uint16(sum[0:])%categories, binary.BigEndian.Uint16(sum[2:])%(categories-1)
	if b >= a {
		b++
	}
	return fmt.Sprintf("s0:c%d,c%d", min(a, b), max(a, b))
}

const attribute = "security.selinux"

// Relabel gives a file, or all of a directory, a label. Containers may change the
// directory meanwhile: each file is changed by its descriptor. File systems that have
// no labels of files are left alone, as is what is mounted in the directory.
func Relabel(path, label string) error {
	value := []byte(label + "\x00")
	return beneath.All(path, func(e *beneath.Entry) error {
		err := e.Setxattr(attribute, value)
		if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EROFS) {
			return nil
		}
		return err
	})
}

// MountOption has a file system be mounted with one label for all its files.
func MountOption(label string) string { return fmt.Sprintf("context=%q", label) }
