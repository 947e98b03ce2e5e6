// Command pause is what the suites' image registry.k8s.io/pause has: it waits, ends with 0
// when it is told to end, as upstream's program in C does, and lets no child of a pod's
// process namespace stay a zombie. agnhost's pause ends with 2.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}
