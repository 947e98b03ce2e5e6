package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"

	coordinatorconfig "github.com/shoal-project/shoal/coordinator/config"
)

// adminLifetime is longer than any command of an administrator takes.
const adminLifetime = "15m"

// admin is a client with all rights: by a kubeconfig, or by a certificate that the
// coordinator's program on this machine makes for the moment.
func (o *options) admin(ctx context.Context, kubeconfig string) (*api, error) {
	if kubeconfig != "" {
		return connect(kubeconfig)
	}
	bin, err := program(coordinatorBin)
	if err != nil {
		return nil, fmt.Errorf("%w; run this on a coordinator's machine, or give --kubeconfig", err)
	}
	server, err := o.ownAPI()
	if err != nil {
		return nil, err
	}
	args := []string{"kubeconfig", "--user", "shoal-command", "--group", "system:masters", "--lifetime", adminLifetime,
		"--server", server}
	if file := o.path("coordinator.yaml"); exists(file) { // written by `shoal up`; units have the default one
		args = append(args, "--config", file)
	} else if o.DataDir != defaultOptions().DataDir {
		args = append(args, "--data-dir", o.DataDir)
	}
	out, err := exec.CommandContext(ctx, bin, args...).Output()
	if err != nil {
		return nil, fmt.Errorf("make an administrator's certificate: %w: %s; run this as root on a coordinator's machine, "+
			"or give --kubeconfig", err, errorOutput(err))
	}
	k, err := parseKubeconfig(out, "the coordinator's kubeconfig")
	if err != nil {
		return nil, err
	}
	id, err := k.identity("")
	if err != nil {
		return nil, err
	}
	return connectAs(k.Clusters[0].Cluster.Server, "", id, "the coordinator's kubeconfig")
}

// ownAPI is the URL of the coordinator on this machine.
func (o *options) ownAPI() (string, error) {
	file := "" // the units' default one
	if own := o.path("coordinator.yaml"); exists(own) {
		file = own
	}
	cfg, err := coordinatorconfig.Load(file)
	if err != nil {
		return "", err
	}
	host := cfg.BindAddress
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "https://" + net.JoinHostPort(host, strconv.Itoa(cfg.Port)), nil
}

// errorOutput is what a program said before it failed.
func errorOutput(err error) string {
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return strings.TrimSpace(string(ended.Stderr))
	}
	return ""
}
