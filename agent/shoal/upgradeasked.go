package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/shoal-project/shoal/agent/upgrade"
)

// asked does what this machine's Node is asked for, and tells it how that went. It may
// be started again at any time.
func (o *upgradeOptions) asked(ctx context.Context, out io.Writer) error {
	h, err := newHealth(o.config)
	if err != nil {
		return err
	}
	var n fleetNode
	if err := h.read(ctx, h.nodePath(), &n); err != nil {
		return err
	}
	wish, err := upgrade.ParseWish(n.Metadata.Annotations[upgrade.WishAnnotation])
	if err != nil || wish == nil || n.result().ID == wish.ID {
		return err
	}
	err = o.fulfil(ctx, h, wish, out)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	r := upgrade.Result{ID: wish.ID, Phase: upgrade.Done}
	if err != nil {
		r.Phase, r.Why = upgrade.Failed, err.Error()
		if errors.Is(err, upgrade.ErrReturned) {
			r.Phase = upgrade.Returned
		}
	}
	return h.tell(ctx, r)
}

func (o *upgradeOptions) fulfil(ctx context.Context, h *health, wish *upgrade.Wish, out io.Writer) error {
	old, err := upgradeDir.Load()
	if err != nil {
		return err
	}
	if old != nil && old.ID == wish.ID { // begun before: by this command, which was ended
		if old.Phase.Over() {
			return ended(old)
		}
		return errors.Join(upgradeDir.Begin(ctx), follow(ctx, out))
	}
	if err := os.MkdirAll(packagesDir, 0o700); err != nil {
		return err
	}
	file := filepath.Join(packagesDir, "asked."+wish.Format)
	defer os.Remove(file)
	if err := h.fetch(ctx, wish.Digest, file); err != nil {
		return fmt.Errorf("get the package: %w", err)
	}
	o.to, o.id = file, wish.ID
	err = o.run(ctx, out)
	if errors.Is(err, upgrade.ErrInstalled) {
		return nil
	}
	return err
}

func (h *health) nodePath() string { return "/api/v1/nodes/" + url.PathEscape(h.m.name) }

// fetchTime is how long one coordinator may take to give the package.
const fetchTime = 2 * time.Minute

// fetch gets a package from a coordinator that has it; one that does not have the
// digest is not kept.
func (h *health) fetch(ctx context.Context, digest, to string) error {
	var errs []error
	for _, a := range h.apis {
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, fetchTime)
			defer cancel()
			body, err := a.get(ctx, upgrade.PackagesPath+"?digest="+digest)
			if err != nil {
				return err
			}
			defer body.Close()
			return saveBody(body, digest, to)
		}()
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// maxPackage is several times what a package has.
const maxPackage = 512 << 20

func saveBody(body io.Reader, digest, to string) error {
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, io.LimitReader(body, maxPackage))
	if err := errors.Join(err, out.Close()); err != nil {
		return err
	}
	got, err := digestOf(to)
	if err == nil && got != digest {
		err = fmt.Errorf("what came has the digest %s, not %s", got, digest)
	}
	return err
}

// tellPatience is how long the API may be away when the result is to be told; who
// starts this command does so again afterwards.
const tellPatience = 2 * time.Minute

func (h *health) tell(ctx context.Context, r upgrade.Result) error {
	ctx, cancel := context.WithTimeout(ctx, tellPatience)
	defer cancel()
	patch := map[string]any{"metadata": map[string]any{"annotations": map[string]any{
		upgrade.ResultAnnotation: r.Text()}}}
	for {
		var errs []error
		for _, a := range h.apis {
			err := a.do(ctx, http.MethodPatch, h.nodePath(), patch, nil)
			if err == nil {
				return nil
			}
			errs = append(errs, err)
		}
		select {
		case <-ctx.Done():
			return errors.Join(errs...)
		case <-time.After(time.Second):
		}
	}
}
