// Fleet runs Shoal on whole machines with systemd as their first process: a
// systemd-nspawn machine for units, restarts, reboots and power-offs, another one
// that packages come to and go from, and a QEMU machine whose control groups are
// v2 only. QEMU machines have what this one's kernel may lack, too: SELinux, quotas of
// projects, sockets of SCTP.
package main
