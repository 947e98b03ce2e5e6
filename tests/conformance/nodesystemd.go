package main

import (
	"errors"
	"strconv"
	"sync/atomic"

	"github.com/godbus/dbus/v5"
)

const (
	systemdName    = "org.freedesktop.systemd1"
	systemdPath    = dbus.ObjectPath("/org/freedesktop/systemd1")
	systemdManager = systemdName + ".Manager"
	// runtimeUnit is the path of containerd.service.
	runtimeUnit = systemdPath + "/unit/containerd_2eservice"
)

// systemd starts and stops the node's containerd, the one unit that the suite asks for by
// the bus (org.freedesktop.systemd1(5)).
type systemd struct {
	runtime *outsideRuntime
	conn    *dbus.Conn
	jobs    *atomic.Uint32
}

func serveSystemd(conn *dbus.Conn, r *outsideRuntime) error {
	err := conn.Export(systemd{r, conn, new(atomic.Uint32)}, systemdPath, systemdManager)
	_, nerr := conn.RequestName(systemdName, dbus.NameFlagDoNotQueue)
	return errors.Join(err, nerr)
}

// GetUnitByPID tells the one unit that there is.
func (s systemd) GetUnitByPID(uint32) (dbus.ObjectPath, *dbus.Error) { return runtimeUnit, nil }

// StopUnit returns a job, whose end a signal tells.
func (s systemd) StopUnit(unit, mode string) (dbus.ObjectPath, *dbus.Error) {
	return s.job(unit, s.runtime.halt), nil
}

// StartUnit is the same, for the start.
func (s systemd) StartUnit(unit, mode string) (dbus.ObjectPath, *dbus.Error) {
	return s.job(unit, s.runtime.run), nil
}

func (s systemd) job(unit string, work func() error) dbus.ObjectPath {
	id := s.jobs.Add(1)
	path := systemdPath + dbus.ObjectPath("/job/"+strconv.Itoa(int(id)))
	go func() {
		result := "done"
		if err := work(); err != nil {
			result = "failed"
		}
		_ = s.conn.Emit(systemdPath, systemdManager+".JobRemoved", id, path, unit, result)
	}()
	return path
}
