package host

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Facts is what is known of the machine.
type Facts struct {
	Hostname string
	IPs      []string
	CPUs     int
	// MemoryBytes, SwapBytes and DiskBytes are capacities.
	MemoryBytes, SwapBytes, DiskBytes int64
	// HugePages is bytes by page size as in "2Mi".
	HugePages map[string]int64

	MachineID, SystemUUID, BootID, Kernel, OSImage string
}

// FindsAddress tells whether Look finds the node's addresses by the default route, ip being
// what is configured.
func FindsAddress(ip string) bool { return ip == "" || ip == "0.0.0.0" }

// Look reads the machine's facts. disk is the directory whose filesystem pods
// use; ip, an address or one of each family with a comma between, overrides what is found
// of its family; families are AF_INET and AF_INET6, the primary one first.
func Look(disk, ip string, families ...int) (Facts, error) {
	f := Facts{CPUs: runtime.NumCPU(), HugePages: hugePages()}
	var err error
	if f.Hostname, err = os.Hostname(); err != nil {
		return f, err
	}
	m, err := memory(proc)
	if err != nil {
		return f, err
	}
	f.MemoryBytes, f.SwapBytes = m.total, m.swap
	space, err := Space(disk)
	if err != nil {
		return f, fmt.Errorf("size of %s: %w", disk, err)
	}
	f.DiskBytes = int64(space.Bytes)
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		f.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	f.MachineID = line("/etc/machine-id")
	f.BootID = BootID()
	f.SystemUUID = line("/sys/class/dmi/id/product_uuid")
	if f.SystemUUID == "" {
		f.SystemUUID = f.MachineID
	}
	f.OSImage = osImage()
	if !FindsAddress(ip) {
		for one := range strings.SplitSeq(ip, ",") {
			f.IPs = append(f.IPs, strings.TrimSpace(one))
		}
		if len(families) > 1 && len(f.IPs) == 1 {
			f.IPs = append(f.IPs, otherAddress(ip, families)...)
		}
		return f, nil
	}
	if len(families) == 0 {
		families = []int{unix.AF_INET}
	}
	for _, family := range families {
		if a, err := address(family); err != nil {
			return f, err
		} else if a != "" {
			f.IPs = append(f.IPs, a)
		}
	}
	if len(f.IPs) == 0 {
		return f, errors.New("no address of this machine was found: give one with --node-ip")
	}
	return f, nil
}

// BootID is another one each time that the machine starts.
func BootID() string { return line("/proc/sys/kernel/random/boot_id") }

func line(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

func hugePages() map[string]int64 {
	out := map[string]int64{}
	dirs, err := filepath.Glob("/sys/kernel/mm/hugepages/hugepages-*kB")
	if err != nil {
		return out
	}
	for _, d := range dirs {
		kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(d), "hugepages-"), "kB"), 10, 64)
		if err != nil {
			continue
		}
		n, err := strconv.ParseInt(line(filepath.Join(d, "nr_hugepages")), 10, 64)
		if err != nil {
			continue
		}
		name := fmt.Sprintf("%dMi", kb>>10)
		if kb >= 1<<20 {
			name = fmt.Sprintf("%dGi", kb>>20)
		} else if kb < 1<<10 {
			name = fmt.Sprintf("%dKi", kb)
		}
		out[name] = n * kb << 10
	}
	return out
}

func osImage() string {
	data, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "Linux"
	}
	for l := range strings.SplitSeq(string(data), "\n") {
		if v, ok := strings.CutPrefix(l, "PRETTY_NAME="); ok {
			return strings.Trim(v, `"`)
		}
	}
	return "Linux"
}

// otherAddress is the node's of the family that a given one is not of; none if it is not found.
func otherAddress(given string, families []int) []string {
	a, err := netip.ParseAddr(given)
	if err != nil {
		return nil
	}
	for _, family := range families {
		if a.Unmap().Is4() == (family == unix.AF_INET) {
			continue
		}
		if other, err := address(family); err == nil && other != "" {
			return []string{other}
		}
	}
	return nil
}

// address finds the node's address of a family: the source of the default route, or
// else the first global address of an interface that is up; "" if there is none.
func address(family int) (string, error) {
	var routes []netlink.Route
	var err error
	for range 100 { // one that changed while it was read may lack the default route
		if routes, err = netlink.RouteList(nil, family); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err == nil {
		for _, r := range routes {
			if r.Dst != nil && !r.Dst.IP.IsUnspecified() || r.Gw == nil {
				continue
			}
			if got, err := netlink.RouteGet(r.Gw); err == nil && len(got) > 0 && got[0].Src != nil {
				return got[0].Src.String(), nil
			}
		}
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
	for _, a := range all {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		ip, ok := netip.AddrFromSlice(n.IP)
		if ip = ip.Unmap(); ok && ip.IsGlobalUnicast() && ip.Is4() == (family == unix.AF_INET) {
			return ip.String(), nil
		}
	}
	return "", nil
}
