package process

import (
	"io"
	"os/exec"
	"strings"
	"testing"
)

func TestOutput(t *testing.T) {
	for _, c := range []struct {
		limit int
		want  string
		over  bool
	}{{0, "", true}, {3, "abc", true}, {6, "abcdef", false}, {9, "abcdef", false}} {
		byParts, byCopy, said := Output{Limit: c.limit}, Output{Limit: c.limit}, Output{Limit: c.limit}
		for _, part := range []string{"ab", "cd", "ef"} {
			if n, err := byParts.Write([]byte(part)); n != 2 || err != nil {
				t.Fatal(n, err)
			}
		}
		if _, err := io.Copy(&byCopy, strings.NewReader("abcdef")); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("printf", "abcdef")
		cmd.Stdout = &said
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		for how, o := range map[string]*Output{"by parts": &byParts, "by a copy": &byCopy, "by a program": &said} {
			if o.String() != c.want || string(o.Bytes()) != c.want || o.Over() != c.over {
				t.Errorf("%s, %d: %q, over %v", how, c.limit, o.String(), o.Over())
			}
		}
	}
}
