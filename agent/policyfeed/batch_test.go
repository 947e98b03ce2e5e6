package policyfeed

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// Lines are cut by the number of objects and by what they have: a reader takes them all.
func TestBatch(t *testing.T) {
	b := NewBatch(Update{Reset: true})
	put := func(n, size int) {
		for i := range n {
			s := Namespace{Name: fmt.Sprint("n", i), Labels: map[string]string{"x": strings.Repeat("<", size)}}
			u := b.Line(s)
			u.Namespaces = append(u.Namespaces, s)
		}
	}
	put(BatchObjects+1, 1)
	put(20, 1<<20)
	var feed strings.Builder
	if err := json.NewEncoder(&feed).Encode(b.Lines[0]); err != nil || len(b.Lines[0].Namespaces) != BatchObjects {
		t.Errorf("the first line has %d objects, %v", len(b.Lines[0].Namespaces), err)
	}
	for _, u := range b.Lines[1:] {
		if err := json.NewEncoder(&feed).Encode(u); err != nil {
			t.Fatal(err)
		}
	}
	r, got := NewReader(strings.NewReader(feed.String())), 0
	for i := range b.Lines {
		u, err := r.Read()
		if err != nil {
			t.Fatal(err)
		}
		if got += u.Count(); u.Reset != (i == 0) || u.More != (i < len(b.Lines)-1) {
			t.Errorf("line %d of %d: reset %v, more %v", i, len(b.Lines), u.Reset, u.More)
		}
	}
	if got != BatchObjects+1+20 {
		t.Errorf("%d objects arrived", got)
	}
}
