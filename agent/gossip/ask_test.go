package gossip

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestAsk: a question is answered by the member that it is for, who knows who asks; and
// by nobody else.
func TestAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		defer f.close()
		answers := func(c *Config) {
			me := c.Name
			c.Answer = func(member string, role Role, question []byte) []byte {
				if string(question) == "nothing" {
					return nil
				}
				return fmt.Appendf(nil, "%s tells %s, %s: %s", me, role, member, question)
			}
		}
		a, b := f.start(0, answers), f.start(1, answers)
		silent := f.start(2)
		for _, g := range []*Group{a, b, silent} {
			f.wait("join", time.Minute, func() bool { return len(g.Members()) == 3 })
		}
		for _, c := range []struct {
			to, question, want, refused string
		}{
			{to: "m1", question: "who?", want: "m1 tells agent, m0: who?"},
			{to: "m1", question: strings.Repeat("q", maxQuestion-40), want: "m1 tells agent, m0: qq"},
			{to: "m1", question: strings.Repeat("q", maxQuestion+1), refused: "at most"},
			{to: "m1", question: "nothing", refused: "ask m1 at "},
			{to: "m2", question: "who?", refused: "ask m2 at "}, // it answers nothing
			{to: "m9", question: "who?", refused: "ask m9: "},
		} {
			got, err := a.Ask(t.Context(), c.to, []byte(c.question))
			if c.refused != "" {
				if err == nil || !strings.Contains(err.Error(), c.refused) {
					t.Errorf("%s: %q, %v; want a refusal with %q", c.to, got, err, c.refused)
				}
			} else if err != nil || !strings.HasPrefix(string(got), c.want) {
				t.Errorf("%s: %q, %v; want %q", c.to, got, err, c.want)
			}
		}
		f.net.Cut("m0", "m1", true)
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if got, err := a.Ask(ctx, "m1", []byte("who?")); err == nil || time.Since(began) > 3*time.Second {
			t.Errorf("over a cut link: %q after %v", got, time.Since(began))
		}
	})
}

// TestNobodyElseAnswers: what one member was asked another does not answer, and an answer
// is to one question.
func TestNobodyElseAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		defer f.close()
		answers := func(c *Config) {
			c.Answer = func(string, Role, []byte) []byte { return []byte("yes") }
		}
		a, b, liar := f.start(0, answers), f.start(1, answers), f.start(2, answers)
		for _, g := range []*Group{a, b, liar} {
			f.wait("join", time.Minute, func() bool { return len(g.Members()) == 3 })
		}
		// A question for m1 that its asker passes on to m2.
		var sent bytes.Buffer
		if _, err := a.writeMessage(&sent, append(appendValue([]byte{msgQuestion}, []byte("m1")), '?'), nil); err != nil {
			t.Fatal(err)
		}
		body, head, from, err := liar.readMessage(&sent, nil)
		if err != nil || from.name != "m0" {
			t.Fatal(from, err)
		}
		if err := liar.answer(nil, head, body, from); err == nil {
			t.Error("m2 answers what m1 was asked")
		}
		// m2's address is said to be m1's: its answers are its own.
		a.mu.Lock()
		m := a.members["m1"]
		m.Addr = a.members["m2"].Addr
		a.members["m1"] = m
		a.mu.Unlock()
		if got, err := a.Ask(t.Context(), "m1", []byte("?")); err == nil {
			t.Errorf("m2 answers for m1: %q", got)
		}
	})
}

// TestUnverified: where names are not proven, nobody's word counts.
func TestUnverified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		defer f.close()
		plain := func(c *Config) {
			c.Trust, c.Identity, c.Grant = nil, nil, nil
			c.Answer = func(string, Role, []byte) []byte { t.Error("asked"); return []byte("yes") }
		}
		a, b := f.start(0, plain), f.start(1, plain)
		f.wait("join", time.Minute, func() bool { return len(a.Members()) == 2 && len(b.Members()) == 2 })
		if _, err := a.Ask(t.Context(), "m1", nil); err != errNotVerified {
			t.Error(err)
		}
	})
}

// FuzzQuestion: what a verified member asks reaches the one who answers whole, and for this
// member alone.
func FuzzQuestion(f *testing.F) {
	a := newAuthority(f)
	g, _ := alone(f, a)
	var asked []byte
	g.cfg.Answer = func(_ string, _ Role, question []byte) []byte {
		asked = question
		return nil
	}
	f.Add(append(appendValue([]byte{msgQuestion}, []byte("self")), "?"...))
	f.Add([]byte{msgQuestion, 200})
	f.Fuzz(func(t *testing.T, b []byte) {
		asked = nil
		body := append([]byte{msgQuestion}, b...)
		if err := g.answer(nil, nil, body, &peer{name: "m"}); err == nil {
			t.Error("nothing was said, and that was sent")
		}
		if !bytes.HasSuffix(body, asked) || len(asked) > maxQuestion {
			t.Errorf("%x was asked by %x", asked, body)
		}
	})
}
