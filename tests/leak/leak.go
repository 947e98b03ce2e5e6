// Package leak fails a package's tests when goroutines outlive them. Every
// package that starts goroutines calls it from its TestMain (a house rule).
package leak

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// libraries are goroutines of others that live as long as the process.
var libraries = []goleak.Option{
	goleak.IgnoreAnyFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
	// A pool of HTTP clients ends idle connections by itself.
	goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
	goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
	// A server gives a client that it refused half a second to read why.
	goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"),
}

// Check runs the tests, then fails when a goroutine that they started is still
// there a second later, and ends the process.
func Check(m *testing.M) {
	goleak.VerifyTestMain(m, libraries...)
}

// module is what the names of the product's functions begin with.
const module = "github.com/shoal-project/shoal/"

// patience is how long goroutines may take to end after the last test. They are
// looked at again and again: the runtime tells of no end.
const patience = 10 * time.Second

// CheckOurs is Check for tests that start an API server or a store in process:
// their libraries leave goroutines behind, so only those count that run the
// product's code or were started by it.
func CheckOurs(m *testing.M) {
	code := m.Run()
	var left []string
	for began := time.Now(); time.Since(began) < patience; time.Sleep(50 * time.Millisecond) {
		if left = ours(); len(left) == 0 {
			break
		}
	}
	if code == 0 && len(left) > 0 {
		fmt.Fprintf(os.Stderr, "goroutines outlive the tests:\n%s\n", strings.Join(left, "\n\n"))
		code = 1
	}
	os.Exit(code)
}

// ours are the stacks of goroutines that the product's code is in, but for the
// one that asks.
func ours() []string {
	buf := make([]byte, 16<<20)
	stacks := strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")
	var out []string
	for _, s := range stacks[1:] { // the first is the caller's
		if strings.Contains(s, module) {
			out = append(out, s)
		}
	}
	return out
}
