// Fleet runs Shoal on whole machines with systemd as their first process: a
// systemd-nspawn machine for units, restarts, reboots and power-offs, another one
// that packages come to and go from, and a QEMU machine whose control groups are
// v2 only.
package main
