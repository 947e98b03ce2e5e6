package oci

import (
	"fmt"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// defaultCapabilities are what containerd and Docker give to a container.
var defaultCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID",
	"CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
}

func (in Input) process() (*specs.Process, error) {
	args, err := in.args()
	if err != nil {
		return nil, err
	}
	caps, err := in.capabilities()
	if err != nil {
		return nil, err
	}
	p := &specs.Process{
		Terminal:        in.Config.GetTty(),
		User:            in.User,
		Args:            args,
		Env:             in.env(),
		Cwd:             in.cwd(),
		NoNewPrivileges: in.security().GetNoNewPrivs(),
		Capabilities:    &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
	}
	adj := max(int(in.Config.GetLinux().GetResources().GetOomScoreAdj()), in.Host.OOMScoreAdj)
	p.OOMScoreAdj = &adj
	return p, nil
}

// args follow the CRI: command replaces the entry point and the image's
// arguments, args alone replace the image's arguments.
func (in Input) args() ([]string, error) {
	command, args := in.Config.GetCommand(), in.Config.GetArgs()
	if len(command) == 0 {
		command = in.Image.Entrypoint
		if len(args) == 0 {
			args = in.Image.Cmd
		}
	}
	all := slices.Concat(command, args)
	if len(all) == 0 || all[0] == "" {
		return nil, ErrNoCommand
	}
	return all, nil
}

func (in Input) cwd() string {
	if w := in.Config.GetWorkingDir(); w != "" {
		return w
	}
	if in.Image.WorkingDir != "" {
		return in.Image.WorkingDir
	}
	return "/"
}

// env is the image's environment, then the container's; a later value of a
// name wins.
func (in Input) env() []string {
	env := []string{defaultPath, "HOSTNAME=" + in.Hostname}
	if in.Config.GetTty() {
		env = append(env, "TERM=xterm")
	}
	at := map[string]int{}
	for i, e := range env {
		at[name(e)] = i
	}
	set := func(e string) {
		if i, ok := at[name(e)]; ok {
			env[i] = e
			return
		}
		at[name(e)] = len(env)
		env = append(env, e)
	}
	for _, e := range in.Image.Env {
		set(e)
	}
	for _, e := range in.Config.GetEnvs() {
		set(e.GetKey() + "=" + string(e.GetValue()))
	}
	return env
}

func name(env string) string {
	n, _, _ := strings.Cut(env, "=")
	return n
}

// capabilities applies add and drop lists (with or without CAP_, "ALL" for
// all) to the default set, and leaves out what this process may not give.
func (in Input) capabilities() ([]string, error) {
	sc := in.security()
	if sc.GetPrivileged() {
		return in.Host.Capabilities, nil
	}
	add, drop := sc.GetCapabilities().GetAddCapabilities(), sc.GetCapabilities().GetDropCapabilities()
	set := map[string]bool{}
	for _, c := range defaultCapabilities {
		set[c] = true
	}
	if hasAll(drop) {
		clear(set)
	}
	if hasAll(add) {
		for _, c := range in.Host.Capabilities {
			set[c] = true
		}
	}
	if !hasAll(drop) {
		for _, c := range drop {
			delete(set, capName(c))
		}
	}
	for _, c := range add {
		if strings.EqualFold(c, "ALL") {
			continue
		}
		if !knownCapabilities[capName(c)] {
			return nil, fmt.Errorf("unknown capability %q", c)
		}
		set[capName(c)] = true
	}
	var out []string
	for _, c := range in.Host.Capabilities {
		if set[c] {
			out = append(out, c)
		}
	}
	return out, nil
}

func hasAll(list []string) bool {
	return slices.ContainsFunc(list, func(c string) bool { return strings.EqualFold(c, "ALL") })
}

func capName(c string) string {
	c = strings.ToUpper(c)
	if strings.HasPrefix(c, "CAP_") {
		return c
	}
	return "CAP_" + c
}

// Stop is the container's stop signal: the pod's, the image's, or SIGTERM.
func Stop(config *criv1.ContainerConfig, image string) string {
	if s := config.GetStopSignal(); s != criv1.Signal_RUNTIME_DEFAULT {
		return s.String()
	}
	if image != "" {
		return image
	}
	return "SIGTERM"
}
