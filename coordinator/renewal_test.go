package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestCertificatesAreRenewed: the coordinator's own certificates live no longer than those
// that it signs for others. The next one is shown while it runs, and a watch goes on.
func TestCertificatesAreRenewed(t *testing.T) {
	dir, port := t.TempDir(), freePort(t)
	p := coordinator(t, dir, port, "--cluster-signing-duration", "10s")
	c := client(t, p, dir, port)
	w, err := c.CoreV1().Nodes().Watch(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	shown := map[string]bool{}
	soon(t, "the third serving certificate", func() error {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			return err
		}
		defer conn.Close()
		shown[conn.ConnectionState().PeerCertificates[0].SerialNumber.String()] = true
		if len(shown) < 3 {
			return fmt.Errorf("%d certificates were shown", len(shown))
		}
		return nil
	})
	select {
	case e, open := <-w.ResultChan():
		t.Errorf("the watch told of %v (open: %v)", e, open)
	default:
	}
	terminate(t, p)
}
