package encryption

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
)

// State is what the coordinator tells of the store's encryption.
type State struct {
	// Hash is File.Hash of the content in use; Error why the file's present
	// content is not.
	Hash  string `json:"hash"`
	Error string `json:"error,omitempty"`
	// Others are the coordinators of the cluster beside this one.
	Others []string `json:"others,omitempty"`
	// Values counts, by resource, the stored values under each key; those in the
	// clear are under "identity".
	Values map[string]map[string]int `json:"values"`
	// Outside: the store is an etcd of its own, beyond the coordinator's reach.
	Outside bool `json:"outside,omitempty"`
}

// StatePath is where the coordinator serves State. To be asked makes it look
// whether the file has changed; a POST makes it forget old versions of values.
const StatePath = "/debug/encryption"

// API is what a rotation needs of the coordinator.
type API interface {
	State(ctx context.Context) (State, error)
	// Rewrite has the store write every object of a resource again.
	Rewrite(ctx context.Context, resource string) (int, error)
	// Forget has the store's files lose old versions of values.
	Forget(ctx context.Context) error
}

// maxName is shorter than what the store reads of a value to tell its key.
const maxName = 200

// Settle is longer than a write is under way that was encrypted just before the
// new key came first: nothing is looked for, and no key dropped, earlier.
const Settle = 3 * time.Second

// Rotation changes the keys of a file while the coordinator runs.
type Rotation struct {
	File   File
	API    API
	Settle time.Duration
	Out    io.Writer
	// Spread has all coordinators, this one among them, use other content in the place of
	// the file's; nil: the file is written, and only one coordinator may run.
	Spread func(ctx context.Context, old, data []byte) error
	// Restore has all coordinators that took data over use old again, and returns when this
	// one does, however it is with the others; it is there if Spread is.
	Restore func(ctx context.Context, old, data []byte) error
}

// Run makes a new key, rewrites with it what is stored, and drops the old keys.
// Interrupted anywhere, the next Run goes on from there.
func (r Rotation) Run(ctx context.Context, now time.Time) error {
	unlock, err := r.lock()
	if err != nil {
		return err
	}
	defer unlock()
	c, err := r.File.read()
	if err != nil {
		return err
	}
	if err := r.possible(ctx, c); err != nil {
		return err
	}
	if progress(c) == whole {
		err = r.step(ctx, "added a key to", func(c *apiserverv1.EncryptionConfiguration) error { return add(c, now) })
	} else {
		fmt.Fprintf(r.Out, "going on with the rotation that %s shows\n", r.File)
		err = r.live(ctx)
	}
	if err != nil {
		return err
	}
	if err := r.promote(ctx); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(r.Settle):
	}
	if err := r.rewrite(ctx); err != nil {
		return err
	}
	forgotten := r.forget(ctx)
	return errors.Join(r.drop(ctx), forgotten)
}

// possible fails where the keys must be changed by hand.
func (r Rotation) possible(ctx context.Context, c *apiserverv1.EncryptionConfiguration) error {
	if len(lists(c)) == 0 {
		return fmt.Errorf(
			"rotate: no entry of %s begins with secretbox, aesgcm or aescbc; keys of a KMS are rotated in the KMS, then `shoal secrets rewrite` writes with the new one",
			r.File)
	}
	for _, w := range lists(c) {
		for _, k := range *w.keys {
			if strings.Contains(k.Name, ":") || len(k.Name) > maxName {
				return fmt.Errorf(
					"rotate: what is under the key %.50q of %s cannot be counted, its name has a colon or more than %d characters: change it by hand, in upstream's four steps",
					k.Name, r.File, maxName)
			}
		}
	}
	s, err := r.API.State(ctx)
	if err != nil {
		return err
	}
	if len(s.Others) > 0 && r.Spread == nil {
		return fmt.Errorf(
			"rotate: other coordinators write with keys of their own files: %s; change the file of each by hand, in upstream's four steps, or stop them",
			strings.Join(s.Others, ", "))
	}
	return nil
}

func (r Rotation) promote(ctx context.Context) error {
	c, err := r.File.read()
	if err != nil || progress(c) != added {
		return err
	}
	return r.step(ctx, "wrote the new key first into", func(c *apiserverv1.EncryptionConfiguration) error {
		promote(c)
		fmt.Fprintf(r.Out, "new values are under %s\n", strings.Join(current(c), ", "))
		return nil
	})
}

// drop removes the keys that no stored value needs any more.
func (r Rotation) drop(ctx context.Context) error {
	before, err := os.ReadFile(string(r.File))
	if err != nil {
		return fmt.Errorf("read encryption configuration: %w", err)
	}
	c, err := r.File.read()
	if err != nil {
		return err
	}
	after := c.DeepCopy()
	old := drop(after)
	if err := r.unused(ctx, old); err != nil {
		return err
	}
	err = r.step(ctx, "dropped "+strings.Join(old, ", ")+" from", func(c *apiserverv1.EncryptionConfiguration) error {
		drop(c)
		return nil
	})
	if err != nil { // the keys are in no other file
		return errors.Join(err, r.putBack(context.WithoutCancel(ctx), before, after))
	}
	return nil
}

// putBack has the content of before a step that failed used again.
func (r Rotation) putBack(ctx context.Context, before []byte, after *apiserverv1.EncryptionConfiguration) error {
	err := error(nil)
	if r.Restore == nil {
		err = r.File.replace(before)
	} else {
		var data []byte
		if data, err = r.File.encode(after); err == nil {
			err = r.Restore(ctx, before, data)
		}
	}
	if err != nil {
		return fmt.Errorf("put back the keys of before into %s: %w", r.File, err)
	}
	fmt.Fprintln(r.Out, "put back the keys of before into", r.File)
	return nil
}

// unused fails while a value is stored under one of the keys.
func (r Rotation) unused(ctx context.Context, keys []string) error {
	s, err := r.API.State(ctx)
	if err != nil {
		return err
	}
	for resource, values := range s.Values {
		for _, k := range keys {
			if n := values[k]; n > 0 {
				return fmt.Errorf("rotate: %d %s are still under %s, which stays in %s; run it again", n,
					resource, k, r.File)
			}
		}
	}
	return nil
}

// step changes the file and returns when the coordinator uses it.
func (r Rotation) step(ctx context.Context, did string, change func(*apiserverv1.EncryptionConfiguration) error) error {
	c, err := r.File.read()
	if err != nil {
		return err
	}
	if err := change(c); err != nil {
		return err
	}
	if err := r.write(ctx, c); err != nil {
		return err
	}
	fmt.Fprintln(r.Out, did, r.File)
	return r.live(ctx)
}

// write has the coordinators use a configuration.
func (r Rotation) write(ctx context.Context, c *apiserverv1.EncryptionConfiguration) error {
	if r.Spread == nil {
		return r.File.write(c)
	}
	old, err := os.ReadFile(string(r.File))
	if err != nil {
		return fmt.Errorf("read encryption configuration: %w", err)
	}
	data, err := r.File.encode(c)
	if err != nil {
		return err
	}
	return r.Spread(ctx, old, data)
}

func (r Rotation) live(ctx context.Context) error {
	want, err := r.File.Hash()
	if err != nil {
		return err
	}
	s, err := r.API.State(ctx)
	if err != nil {
		return err
	}
	if s.Hash != want {
		return fmt.Errorf("the coordinator does not use the content of %s: %s; run this again when it does", r.File,
			s.Error)
	}
	return nil
}

// Rewrite has every encrypted resource written again, with the keys that come
// first in the file.
func (r Rotation) Rewrite(ctx context.Context) error {
	unlock, err := r.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := r.live(ctx); err != nil {
		return err
	}
	if err := r.rewrite(ctx); err != nil {
		return err
	}
	return r.forget(ctx)
}

// forget has nothing left of how values were stored before, where the coordinator
// can do it.
func (r Rotation) forget(ctx context.Context) error {
	s, err := r.API.State(ctx)
	if err != nil {
		return err
	}
	if s.Outside {
		fmt.Fprintln(r.Out, "values as they were before stay in the history of your etcd for up to ten minutes,\n"+
			"and in free pages of its files until you run `etcdctl defrag` on each member after that")
		return nil
	}
	if err := r.API.Forget(ctx); err != nil {
		return fmt.Errorf(
			"values as they were before are still in the store's history: %w; `shoal secrets rewrite` tries it again",
			err)
	}
	fmt.Fprintln(r.Out, "dropped the store's history, and wrote its database anew without it")
	return nil
}

func (r Rotation) rewrite(ctx context.Context) error {
	s, err := r.API.State(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, resource := range slices.Sorted(maps.Keys(s.Values)) {
		if len(s.Values[resource]) == 0 {
			continue
		}
		n, err := r.API.Rewrite(ctx, resource)
		if err != nil {
			errs = append(errs, fmt.Errorf("rewrite %s: %w", resource, err))
		}
		fmt.Fprintf(r.Out, "rewrote %d %s\n", n, resource)
	}
	return errors.Join(errs...)
}

// lock keeps a second rotation of the file away while this process lives.
func (r Rotation) lock() (unlock func(), err error) {
	dir, err := os.Open(filepath.Dir(string(r.File)))
	if err != nil {
		return nil, fmt.Errorf("rotate: %w", err)
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = dir.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errors.New("another rotation runs")
		}
		return nil, fmt.Errorf("rotate keys of %s: %w", r.File, err)
	}
	return func() { _ = dir.Close() }, nil
}

// Status prints the keys' names and what is stored under each.
func (r Rotation) Status(ctx context.Context) error {
	c, err := r.File.read()
	if err != nil {
		return err
	}
	s, err := r.API.State(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(r.Out, "%s: %s\n", r.File, map[phase]string{
		whole: "no rotation is under way", added: "a rotation has added its key", promoted: "a rotation rewrites what is stored",
	}[progress(c)])
	if s.Error != "" {
		fmt.Fprintf(r.Out, "the coordinator says: %s\n", s.Error)
	}
	fmt.Fprintf(r.Out, "new values are under: %s\n", strings.Join(current(c), ", "))
	t := tabwriter.NewWriter(r.Out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "RESOURCE\tKEY\tVALUES")
	for _, resource := range slices.Sorted(maps.Keys(s.Values)) {
		for _, key := range slices.Sorted(maps.Keys(s.Values[resource])) {
			fmt.Fprintf(t, "%s\t%s\t%d\n", resource, key, s.Values[resource][key])
		}
	}
	return t.Flush()
}
