package rotation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/shoal-project/shoal/coordinator/pki"
)

// API is that of a coordinator (Member, Client).
type API interface {
	Status(ctx context.Context) (Status, error)
	Change(ctx context.Context, c Change) error
}

// Client asks a coordinator through its API.
type Client struct{ REST rest.Interface }

// Status implements API.
func (c Client) Status(ctx context.Context) (s Status, err error) {
	data, err := c.REST.Get().AbsPath(Path).DoRaw(ctx)
	if err != nil {
		return s, said("ask the coordinator for its keys", data, err)
	}
	return s, json.Unmarshal(data, &s)
}

// Change implements API.
func (c Client) Change(ctx context.Context, change Change) error {
	body, err := json.Marshal(change)
	if err != nil {
		return err
	}
	code := 0
	data, err := c.REST.Put().AbsPath(Path).Body(body).Do(ctx).StatusCode(&code).Raw()
	if err != nil && code == http.StatusNotFound {
		return errors.New("the coordinator is of an earlier version, or not started anew since the upgrade")
	}
	if err != nil {
		return said("change keys", data, err)
	}
	return nil
}

// said prefers the words of an answer to what a client's library makes of its code.
func said(what string, body []byte, err error) error {
	if len(body) > 0 {
		return fmt.Errorf("%s: %s", what, strings.TrimSpace(string(body)))
	}
	return fmt.Errorf("%s: %w (is it running?)", what, err)
}

// Forget removes what a coordinator that is gone for good has told.
func (c Client) Forget(ctx context.Context, name string) error {
	data, err := c.REST.Delete().AbsPath(Path).Param("name", name).DoRaw(ctx)
	if err != nil {
		return said("forget a coordinator", data, err)
	}
	return nil
}

const (
	// waitFor is how long coordinators may take to follow a step, which takes some
	// tenths of a second.
	waitFor = 30 * time.Second
	// lookEvery: there is no event for a client.
	lookEvery = 200 * time.Millisecond
)

// Of is the status of a set.
func (s Status) Of(set string) (SetStatus, error) {
	i := slices.IndexFunc(s.Sets, func(s SetStatus) bool { return s.Name == set })
	if i < 0 {
		return SetStatus{}, fmt.Errorf("the coordinator knows no keys %q: it is of another version", set)
	}
	return s.Sets[i], nil
}

// Spread has all coordinators use files in the place of others, and returns when they do.
// With force it waits only for the one that is asked.
func Spread(ctx context.Context, api API, c Change, old pki.Files) error {
	c.Base = digest(old)
	if err := api.Change(ctx, c); err != nil {
		return err
	}
	return wait(ctx, api, c, digest(c.Files))
}

// Restore has files used again in the place of others that Spread has not brought to all:
// also where coordinators are behind, which is why. It returns when the one that is asked
// uses them. If the others were never taken there is nothing to do.
func Restore(ctx context.Context, api API, c Change, bad pki.Files) error {
	status, err := api.Status(ctx)
	if err != nil {
		return err
	}
	set, err := status.Of(c.Set)
	if err != nil {
		return err
	}
	c.Force = true
	if set.Digest == digest(c.Files) {
		return wait(ctx, api, c, set.Digest)
	}
	return Spread(ctx, api, c, bad)
}

func wait(ctx context.Context, api API, c Change, want string) error {
	ctx, cancel := context.WithTimeout(ctx, waitFor)
	defer cancel()
	var behind []Behind
	for {
		status, err := api.Status(ctx)
		if err == nil {
			var set SetStatus
			if set, err = status.Of(c.Set); err != nil {
				return err
			}
			if set.Digest != want {
				return errors.New("another has changed the keys meanwhile; run it again")
			}
			behind = set.Behind
			if len(behind) == 0 || c.Force && slices.Contains(set.Followed, status.Self) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not all coordinators have followed yet; run it again when they do: %w",
				errors.Join(err, joined(behind)))
		case <-time.After(lookEvery):
		}
	}
}

func joined(behind []Behind) error {
	var errs []error
	for _, b := range behind {
		errs = append(errs, errors.New(b.String()))
	}
	return errors.Join(errs...)
}

// Rotation changes a key that signs, by an operator's hand on a coordinator's machine.
type Rotation struct {
	Of    pki.Rotating
	Dir   pki.Dir
	API   API
	Force bool
	Out   io.Writer
	// Others returns an error while others than coordinators have not followed to a phase;
	// nil: there are none.
	Others func(ctx context.Context, at pki.Phase) error
}

// Begin makes a new key and has all believe it.
func (r Rotation) Begin(ctx context.Context) error {
	at, err := r.at()
	if err != nil {
		return err
	}
	switch at {
	case pki.Whole:
		if err := r.settled(ctx, at); err != nil {
			return err
		}
		if err := r.step(ctx); err != nil {
			return err
		}
		at = pki.Added
	case pki.Signing:
		return fmt.Errorf("rotate %s: the rotation before has not ended: %s; `drop` ends it", r.Of.Name, words[at])
	}
	return r.settled(ctx, at)
}

// Sign has the new key sign, once all believe it. What the old one has signed is good
// until Drop.
func (r Rotation) Sign(ctx context.Context) error {
	at, err := r.at()
	if err != nil {
		return err
	}
	switch at {
	case pki.Whole:
		return fmt.Errorf("sign with a new key: there is none: %s; `rotate` makes one", words[at])
	case pki.Added:
		if err := r.settled(ctx, at); err != nil {
			return err
		}
		if err := r.step(ctx); err != nil {
			return err
		}
	}
	return r.settled(ctx, pki.Signing)
}

// Drop has what the old key signed be good no more.
func (r Rotation) Drop(ctx context.Context) error {
	at, err := r.at()
	if err != nil {
		return err
	}
	if at != pki.Signing {
		return fmt.Errorf("drop the old key: no new one signs: %s", words[at])
	}
	if err := r.settled(ctx, at); err != nil {
		return err
	}
	if err := r.step(ctx); err != nil {
		return err
	}
	return r.settled(ctx, pki.Whole)
}

var words = map[pki.Phase]string{
	pki.Whole: "no rotation is under way", pki.Added: "the new key is believed, the old one signs",
	pki.Signing: "the new key signs, the old one is believed",
}

// Words say in which step of a rotation something is.
func Words(step string) string {
	if w := words[pki.Phase(step)]; w != "" {
		return w
	}
	return step
}

func (r Rotation) at() (pki.Phase, error) {
	files, err := r.Dir.ReadFiles(r.Of.Files...)
	if err != nil {
		return "", err
	}
	return r.Of.Phase(files)
}

// settled returns when all are ready for the step after a phase.
func (r Rotation) settled(ctx context.Context, at pki.Phase) error {
	files, err := r.Dir.ReadFiles(r.Of.Files...)
	if err != nil {
		return err
	}
	if err := wait(ctx, r.API, Change{Set: r.Of.Name, Force: r.Force}, digest(files)); err != nil {
		return err
	}
	if r.Others == nil {
		return nil
	}
	err = r.Others(ctx, at)
	if err != nil && r.Force {
		fmt.Fprintf(r.Out, "going on by force: %v\n", err)
		return nil
	}
	return err
}

func (r Rotation) step(ctx context.Context) error {
	old, err := r.Dir.ReadFiles(r.Of.Files...)
	if err != nil {
		return err
	}
	to, files, err := r.Of.Next(old, time.Now())
	if err != nil {
		return err
	}
	c := Change{Set: r.Of.Name, Step: string(to), Files: files, Force: r.Force}
	if err := Spread(ctx, r.API, c, old); err != nil {
		return fmt.Errorf("rotate %s: %w", r.Of.Name, err)
	}
	done := words[to]
	if to == pki.Whole {
		done = "the new key is the only one"
	}
	fmt.Fprintf(r.Out, "%s: %s, at all coordinators\n", r.Of.Name, done)
	return nil
}
