package nft

import (
	"testing"

	"github.com/google/nftables/userdata"
)

// FuzzListed: what the kernel says of others' chains and rules, who wrote anything there, is
// read without a panic, and a comment is no longer than what it is in.
func FuzzListed(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 8, 0, 5, 0, 0, 0, 0, 1})
	f.Add(append([]byte{2, 0, 0, 0, 10, 0, 7, 0}, userdata.AppendString(nil, userdata.TypeComment, "one")...))
	f.Add([]byte{2, 0, 0, 0, 7, 0, 7, 0, 0, 255, 'x', 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _, _ = parseChain(data)
		if r, err := parseRule(data); err == nil && len(r.Comment) > len(data) {
			t.Errorf("comment %q", r.Comment)
		}
		if c := comment(data); len(c) > len(data) {
			t.Errorf("comment %q", c)
		}
	})
}

// A comment is found wherever it stands among what a program keeps with its rule.
func TestComment(t *testing.T) {
	alone := userdata.AppendString(nil, userdata.TypeComment, "shoal:x")
	for text, data := range map[string][]byte{
		"shoal:x": append([]byte{1, 2, 3, 4}, alone...),
		"":        {1, 200, 0},
		"x":       {0, 1, 'x'},
	} {
		if got := comment(data); got != text {
			t.Errorf("%v: got %q, want %q", data, got, text)
		}
	}
}
