package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/prop"
)

// busConfig is a system bus on which everybody may do everything: the suite emits signals
// in the name of logind.
const busConfig = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
	"http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
	<type>system</type>
	<listen>unix:path=/run/dbus/system_bus_socket</listen>
	<policy context="default">
		<allow user="*"/>
		<allow own="*"/>
		<allow send_type="method_call"/>
		<allow send_destination="*"/>
		<allow receive_sender="*"/>
	</policy>
</busconfig>
`

const (
	logindName = "org.freedesktop.login1"
	logindPath = dbus.ObjectPath("/org/freedesktop/login1")
)

// logind grants inhibitors, as systemd-logind does (org.freedesktop.login1(5)). No shutdown
// waits for them: what the suite emits is all that there is of a shutdown.
type logind struct{ inhibitor *os.File }

// Inhibit returns what the caller closes when the shutdown need not wait any longer.
func (l logind) Inhibit(what, who, why, mode string) (dbus.UnixFD, *dbus.Error) {
	return dbus.UnixFD(l.inhibitor.Fd()), nil // the bus sends a copy
}

// serveLogind starts a system bus on the node, and logind on it.
func (n *nodeMachine) serveLogind() error {
	config := filepath.Join(n.cluster.Dir, "bus.conf")
	if err := os.WriteFile(config, []byte(busConfig), 0o644); err != nil {
		return err
	}
	socket := filepath.Join(n.agent.Root(), "run", "dbus", "system_bus_socket")
	if err := os.Mkdir(filepath.Dir(socket), 0o755); err != nil {
		return err
	}
	bus := n.agent.Command("dbus-daemon", "--config-file="+config, "--nofork", "--nopidfile")
	bus.Stderr = os.Stderr
	if err := bus.Start(); err != nil { // it ends with the machine
		return err
	}
	go func() { _ = bus.Wait() }()
	var conn *dbus.Conn
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		var err error
		if conn, err = dbus.Connect("unix:path=" + socket); err == nil {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("system bus of the node: %w", err)
		}
	}
	inhibitor, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	err = conn.Export(logind{inhibitor}, logindPath, logindName+".Manager")
	_, perr := prop.Export(conn, logindPath, prop.Map{logindName + ".Manager": {
		"InhibitDelayMaxUSec": {Value: uint64(time.Hour / time.Microsecond)},
	}})
	_, nerr := conn.RequestName(logindName, dbus.NameFlagDoNotQueue)
	if err = errors.Join(err, perr, nerr); err != nil || n.outside == nil {
		return err
	}
	return serveSystemd(conn, n.outside)
}
