package main

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/agent/source"
	"github.com/shoal-project/shoal/agent/volume"
)

// hollowVolumes asks the API for all that volumes show, and makes none.
type hollowVolumes struct {
	objects *source.Objects
	tokens  *volume.TokenCache

	mu       sync.Mutex
	ctx      context.Context
	renewals map[types.UID]*time.Timer
}

// Ensure reads what the pod's volumes show.
func (h *hollowVolumes) Ensure(ctx context.Context, p *v1.Pod) error {
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if err := h.read(ctx, p, v); err != nil {
			return fmt.Errorf("MountVolume.SetUp failed for volume %q : %w", v.Name, err)
		}
	}
	return nil
}

func (h *hollowVolumes) read(ctx context.Context, p *v1.Pod, v *v1.Volume) error {
	switch {
	case v.ConfigMap != nil:
		return h.configMap(ctx, p, v.ConfigMap.Name, v.ConfigMap.Optional)
	case v.Secret != nil:
		return h.secret(ctx, p, v.Secret.SecretName, v.Secret.Optional)
	case v.Projected == nil:
		return nil
	}
	for i := range v.Projected.Sources {
		var err error
		switch s := &v.Projected.Sources[i]; {
		case s.ConfigMap != nil:
			err = h.configMap(ctx, p, s.ConfigMap.Name, s.ConfigMap.Optional)
		case s.Secret != nil:
			err = h.secret(ctx, p, s.Secret.Name, s.Secret.Optional)
		case s.ServiceAccountToken != nil:
			err = h.token(ctx, p, s.ServiceAccountToken)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (h *hollowVolumes) configMap(ctx context.Context, p *v1.Pod, name string, optional *bool) error {
	_, err := h.objects.ConfigMap(ctx, p.Namespace, name)
	return unless(optional, err)
}

func (h *hollowVolumes) secret(ctx context.Context, p *v1.Pod, name string, optional *bool) error {
	_, err := h.objects.Secret(ctx, p.Namespace, name)
	return unless(optional, err)
}

// unless forgives that an optional object is missing.
func unless(optional *bool, err error) error {
	if optional != nil && *optional && apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// token asks for a token, and again in time.
func (h *hollowVolumes) token(ctx context.Context, p *v1.Pod, s *v1.ServiceAccountTokenProjection) error {
	_, renew, err := h.tokens.Token(ctx, p, s)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if old := h.renewals[p.UID]; old != nil {
		old.Stop()
	}
	h.renewals[p.UID] = time.AfterFunc(time.Until(renew), func() {
		h.mu.Lock()
		_, wanted := h.renewals[p.UID]
		ctx := h.ctx
		h.mu.Unlock()
		if wanted && ctx != nil && ctx.Err() == nil {
			_ = h.token(ctx, p, s) // the API is away or the pod gone: a load that fails is none
		}
	})
	return nil
}

// Release ends renewals.
func (h *hollowVolumes) Release(_ context.Context, p *v1.Pod) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.renewals[p.UID]; t != nil {
		t.Stop()
	}
	delete(h.renewals, p.UID)
	return nil
}

// Refresh does nothing: nobody reads the volumes.
func (h *hollowVolumes) Refresh(context.Context, *v1.Pod) error { return nil }

// Changed does nothing, as Refresh.
func (h *hollowVolumes) Changed(string) {}

// Run lets tokens be renewed until ctx ends.
func (h *hollowVolumes) Run(ctx context.Context) error {
	h.mu.Lock()
	h.ctx = ctx
	h.mu.Unlock()
	<-ctx.Done()
	return nil
}

// Path is a name that nothing lies at.
func (h *hollowVolumes) Path(_ *v1.Pod, name string) (string, error) {
	return filepath.Join("/hollow", name), nil
}

// SubPath is as Path.
func (h *hollowVolumes) SubPath(_ *v1.Pod, s volume.SubPath) (string, error) {
	return filepath.Join("/hollow", s.Volume, s.Path), nil
}
