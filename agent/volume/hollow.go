package volume

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// NewHollow returns a manager for a node that mounts nothing: it reads from the
// API all that volumes show, when a node would, and they lie nowhere.
func NewHollow(objects Objects, tokens Tokens, facts func(p *corev1.Pod) Facts, log *slog.Logger) *Manager {
	m := &Manager{
		RootDir: hollowDir,
		Objects: objects,
		Tokens:  tokens,
		Claims:  hollowClaims{},
		Facts:   facts,
		Log:     log,
		mounts:  hollowMounter{},
	}
	shows := projectedDriver{objects: objects, tokens: tokens, facts: facts}
	m.rows = []row{{name: "hollow", driver: hollowDriver{shows: shows}}}
	return m
}

// hollowDir is a name that nothing lies at.
const hollowDir = "/hollow"

// hollowDriver takes every volume, and mounts none.
type hollowDriver struct {
	unstaged
	shows projectedDriver
}

// Supports implements driver.
func (hollowDriver) Supports(Source) bool { return true }

// Path implements driver.
func (hollowDriver) Path(_ string, s Source) string { return filepath.Join(hollowDir, s.Volume.Name) }

// Follows implements driver.
func (hollowDriver) Follows(s Source) bool { return FromAPI(&s.Volume) }

// Mount implements driver.
func (d hollowDriver) Mount(ctx context.Context, p *corev1.Pod, v *Volume) (time.Time, error) {
	if !FromAPI(&v.Volume) {
		return time.Time{}, nil
	}
	b, err := d.shows.gather(ctx, p, &v.Volume)
	if err != nil {
		return time.Time{}, err
	}
	return b.renew, nil
}

// Unmount implements driver.
func (hollowDriver) Unmount(context.Context, *Volume) error { return nil }

// hollowMounter mounts nothing.
type hollowMounter struct{}

// Mounted implements mounter.
func (hollowMounter) Mounted(string) (bool, error) { return false, nil }

// Tmpfs implements mounter.
func (hollowMounter) Tmpfs(string, tmpfsOptions) error { return nil }

// Bind implements mounter.
func (hollowMounter) Bind(string, string, string) error { return nil }

// Mount implements mounter.
func (hollowMounter) Mount(context.Context, string, string, string, []string) error { return nil }

// Format implements mounter.
func (hollowMounter) Format(context.Context, string, string, string, []string) error { return nil }

// Resize implements mounter.
func (hollowMounter) Resize(context.Context, string, string) error { return nil }

// Unmount implements mounter.
func (hollowMounter) Unmount(context.Context, string) error { return nil }

// UnmountUnder implements mounter.
func (hollowMounter) UnmountUnder(string) error { return nil }

// hollowClaims has a volume behind every claim, and does not ask for it.
type hollowClaims struct{}

// Volume implements Claims.
func (hollowClaims) Volume(context.Context, *corev1.Pod, *corev1.Volume) (*corev1.PersistentVolume, error) {
	return &corev1.PersistentVolume{}, nil
}

// KnownVolume implements Claims.
func (hollowClaims) KnownVolume(*corev1.Pod, *corev1.Volume) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{}
}

// TokenTimes is Saved for hollow nodes: it keeps when tokens must be renewed,
// not the tokens, which nobody reads.
type TokenTimes struct{ InMemory }

// Put implements Saved.
func (s TokenTimes) Put(uid string, t *PodTokens) error {
	times := make(PodTokens, len(*t))
	for key, token := range *t {
		token.Token = ""
		times[key] = token
	}
	return s.InMemory.Put(uid, &times)
}
