package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// attach shows a file as a block device and returns the device, open. Where temporary
// is true the device ends with the last that uses it.
func attach(ctx context.Context, file string, temporary bool) (*os.File, error) {
	backing, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer backing.Close()
	config := unix.LoopConfig{Fd: uint32(backing.Fd())}
	copy(config.Info.File_name[:], file)
	config.Info.Flags = unix.LO_FLAGS_DIRECT_IO
	if temporary {
		config.Info.Flags |= unix.LO_FLAGS_AUTOCLEAR
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("loop devices: %w", err)
	}
	defer control.Close()
	for ctx.Err() == nil {
		free, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		device, err := openLoop(free, os.O_RDWR)
		if err != nil {
			return nil, err
		}
		err = unix.IoctlLoopConfigure(int(device.Fd()), &config)
		if errors.Is(err, unix.EINVAL) && config.Info.Flags&unix.LO_FLAGS_DIRECT_IO != 0 {
			config.Info.Flags &^= unix.LO_FLAGS_DIRECT_IO // the disk cannot
			err = unix.IoctlLoopConfigure(int(device.Fd()), &config)
		}
		if err == nil {
			return device, nil
		}
		_ = device.Close()
		if !errors.Is(err, unix.EBUSY) { // somebody was faster
			return nil, fmt.Errorf("attach %s to %s: %w", file, device.Name(), err)
		}
	}
	return nil, ctx.Err()
}

// openLoop opens a loop device, whose file is made where nobody else makes it.
func openLoop(number, mode int) (*os.File, error) {
	path := "/dev/loop" + strconv.Itoa(number)
	f, err := os.OpenFile(path, mode, 0)
	if !errors.Is(err, os.ErrNotExist) {
		return f, err
	}
	const loopMajor = 7
	err = unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(loopMajor, uint32(number))))
	if err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("make %s: %w", path, err)
	}
	return os.OpenFile(path, mode, 0)
}

// attached are the loop devices that show a file.
func attached(file string) ([]string, error) {
	var of unix.Stat_t
	if err := unix.Stat(file, &of); err != nil {
		return nil, err
	}
	in, err := filepath.Glob("/sys/block/loop*/loop")
	if err != nil {
		return nil, err
	}
	// Only devices that may be meant are opened: one that is open does not end when
	// its last user gives it back.
	last := "/" + filepath.Base(filepath.Dir(file)) + "/" + filepath.Base(file)
	var out []string
	for _, dir := range in {
		backing, err := os.ReadFile(filepath.Join(dir, "backing_file"))
		if err != nil || !strings.Contains(string(backing), last) {
			continue
		}
		name := filepath.Base(filepath.Dir(dir))
		number, err := strconv.Atoi(strings.TrimPrefix(name, "loop"))
		if err != nil {
			continue
		}
		device, err := openLoop(number, os.O_RDONLY)
		if err != nil {
			continue // it ended meanwhile
		}
		info, err := unix.IoctlLoopGetStatus64(int(device.Fd()))
		_ = device.Close()
		// The kernel tells the device of the file in its own form (huge_encode_dev).
		if err == nil && info.Inode == of.Ino && info.Device == encoded(of.Dev) {
			out = append(out, device.Name())
		}
	}
	return out, nil
}

// encoded is a device's number as the kernel's huge_encode_dev has it, which for 32
// bits is that of stat(2).
func encoded(dev uint64) uint64 {
	major, minor := uint64(unix.Major(dev)), uint64(unix.Minor(dev))
	return minor&0xff | major<<8 | (minor&^0xff)<<12
}

// detach ends the loop devices that show a file.
func detach(file string) error {
	list, err := attached(file)
	if err != nil {
		return err
	}
	for _, path := range list {
		device, err := os.OpenFile(path, os.O_RDONLY, 0)
		if err != nil {
			return err
		}
		err = unix.IoctlSetInt(int(device.Fd()), unix.LOOP_CLR_FD, 0)
		if err := errors.Join(err, device.Close()); err != nil && !errors.Is(err, unix.ENXIO) {
			return fmt.Errorf("detach %s: %w", path, err)
		}
	}
	return nil
}

// grown has loop devices see that their file is larger.
func grown(devices []string) error {
	for _, path := range devices {
		device, err := os.OpenFile(path, os.O_RDONLY, 0)
		if err != nil {
			return err
		}
		err = unix.IoctlSetInt(int(device.Fd()), unix.LOOP_SET_CAPACITY, 0)
		if err := errors.Join(err, device.Close()); err != nil {
			return fmt.Errorf("%s has a larger file: %w", path, err)
		}
	}
	return nil
}
