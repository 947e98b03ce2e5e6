package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	in := `# a linker's warning
{"Action":"start","Package":"p/one"}
{"Action":"run","Package":"p/one","Test":"TestA"}
{"Action":"output","Package":"p/one","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"p/one","Test":"TestA","Output":"    a_test.go:7: 1, not 2:\n"}
{"Action":"output","Package":"p/one","Test":"TestA","Output":"        more of it\n"}
{"Action":"output","Package":"p/one","Test":"TestA","Output":"time=now level=ERROR msg=noise\n"}
{"Action":"run","Package":"p/one","Test":"TestA/part"}
{"Action":"pass","Package":"p/one","Test":"TestA/part"}
{"Action":"fail","Package":"p/one","Test":"TestA"}
{"Action":"run","Package":"p/one","Test":"TestB/part"}
{"Action":"output","Package":"p/one","Test":"TestB/part","Output":"    b_test.go:9: late\n"}
{"Action":"fail","Package":"p/one","Test":"TestB/part"}
{"Action":"fail","Package":"p/one","Test":"TestB"}
{"Action":"fail","Package":"p/one"}
{"Action":"output","Package":"p/two","Output":"panic: it ended\n"}
{"Action":"fail","Package":"p/two"}
{"Action":"pass","Package":"p/three"}
{"Action":"run","Package":"p/one","Test":"TestB/part"}
{"Action":"pass","Package":"p/one","Test":"TestB/part"}
{"Action":"pass","Package":"p/one","Test":"TestB"}
{"Action":"pass","Pack`
	var out bytes.Buffer
	if err := report(strings.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	const want = `FAILED: p/one TestA
        a_test.go:7: 1, not 2:
            more of it
FLAKY, passed when run again: p/one TestB/part
        b_test.go:9: late
FAILED: p/two
    panic: it ended
`
	if out.String() != want {
		t.Errorf("got\n%s, not\n%s", &out, want)
	}
}
