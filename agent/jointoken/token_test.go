package jointoken

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"
)

func sample() Token {
	return Token{
		Role: RoleNode, Servers: []string{"192.0.2.1:6443", "[2001:db8::1]:6443", "api.example.com:443"},
		CA: bytes.Repeat([]byte{7}, 32), ID: "abcdef", Secret: "0123456789abcdef", Expires: 1800000000,
	}
}

func encode(t testing.TB, tok Token) string {
	t.Helper()
	text, err := tok.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestRoundTrip(t *testing.T) {
	text := encode(t, sample())
	got, err := Decode("  " + text + "\n")
	if err != nil || !reflect.DeepEqual(got, sample()) {
		t.Fatalf("%+v, %v", got, err)
	}
	if got.Bearer() != "abcdef.0123456789abcdef" {
		t.Error(got.Bearer())
	}
	if strings.ContainsAny(text, " +/='\"$") {
		t.Errorf("a shell would change %s", text)
	}
	end := time.Unix(got.Expires, 0)
	if got.Expired(end.Add(-time.Second)) || !got.Expired(end) || (Token{}).Expired(end) {
		t.Error("the end is not where it was said")
	}
}

// TestMalformed: each text that is no token is told with what to do.
func TestMalformed(t *testing.T) {
	text := encode(t, sample())
	unknown := []byte(`{"r":"node","x":1}`)
	for name, tt := range map[string]struct{ text, want string }{
		"empty":             {"", "make one with `shoal token create`"},
		"another text":      {"abcdef.0123456789abcdef", "make one with `shoal token create`"},
		"another form":      {"shoal2.AAAA", "form 2"},
		"cut off":           {text[:len(text)-9], "copy the whole line"},
		"mistyped":          {text[:40] + swap(text[40]) + text[41:], "copy the whole line"},
		"nothing in it":     {prefix, "copy the whole line"},
		"a newer's field":   {prefix + encoding.EncodeToString(append(unknown, sum(unknown)...)), "install the version"},
		"longer than it is": {prefix + strings.Repeat("A", maxText), "longer than"},
	} {
		if _, err := Decode(tt.text); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

func swap(c byte) string {
	if c == 'A' {
		return "B"
	}
	return "A"
}

func TestLimits(t *testing.T) {
	for name, change := range map[string]func(*Token){
		"role":      func(t *Token) { t.Role = "captain" },
		"none":      func(t *Token) { t.Servers = nil },
		"many":      func(t *Token) { t.Servers = make([]string, MaxServers+1) },
		"no port":   func(t *Token) { t.Servers[0] = "192.0.2.1" },
		"port":      func(t *Token) { t.Servers[0] = "192.0.2.1:65536" },
		"port zero": func(t *Token) { t.Servers[0] = "192.0.2.1:0" },
		"host":      func(t *Token) { t.Servers[0] = "a b:6443" },
		"path":      func(t *Token) { t.Servers[0] = "a/../b:6443" },
		"hash":      func(t *Token) { t.CA = t.CA[1:] },
		"id":        func(t *Token) { t.ID = "ABCDEF" },
		"secret":    func(t *Token) { t.Secret = "short" },
		"expires":   func(t *Token) { t.Expires = -1 },
	} {
		tok := sample()
		change(&tok)
		if text, err := tok.Encode(); err == nil {
			t.Errorf("%s: encoded as %s", name, text)
		}
	}
}

// FuzzDecode: what is read is within the limits, and has one text.
func FuzzDecode(f *testing.F) {
	f.Add(encode(f, sample()))
	f.Add(prefix + "AAAA")
	f.Fuzz(func(t *testing.T, text string) {
		tok, err := Decode(text)
		if err != nil {
			return
		}
		again, err := tok.Encode()
		if err != nil {
			t.Fatalf("read %+v, which cannot be written: %v", tok, err)
		}
		if back, err := Decode(again); err != nil || !reflect.DeepEqual(back, tok) {
			t.Fatalf("%+v became %+v, %v", tok, back, err)
		}
	})
}
