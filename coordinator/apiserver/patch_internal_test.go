package apiserver

import "testing"

func TestBeginsWithNull(t *testing.T) {
	for text, want := range map[string]bool{
		``: false, `{"a":[]}`: false, `{"a":null}`: false, `{"a":[1,null]}`: false, `{"a":"[null"}`: false,
		`{"a":"\"[null"}`: false, `["null"]`: false, `[`: false, `"`: false, `"\`: false,
		`[null]`: false, ` [[null]]`: false, `{"a":[null`: true, `{"a":[ null]}`: true, `{"a":[[null]]}`: true,
		"{\"a\":\"\\\\\",\"b\":[\n\tnull]}": true,
	} {
		if got := beginsWithNull([]byte(text)); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}
