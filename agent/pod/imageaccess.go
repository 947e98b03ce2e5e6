package pod

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	criapi "k8s.io/cri-api/pkg/apis"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/record"
	"github.com/shoal-project/shoal/agent/registry"
)

// VerifyPolicy tells which images that are on the node need the pod's own
// credentials (KEP-2535).
type VerifyPolicy string

// The policies, by the kubelet's names.
const (
	NeverVerify                  VerifyPolicy = "NeverVerify"
	NeverVerifyPreloadedImages   VerifyPolicy = "NeverVerifyPreloadedImages"
	NeverVerifyAllowlistedImages VerifyPolicy = "NeverVerifyAllowlistedImages"
	AlwaysVerify                 VerifyPolicy = "AlwaysVerify"
)

// Limits of one record, so that the turnover of namespaces cannot grow it.
const (
	maxAccessNames   = 100
	maxAccessSecrets = 100
)

// ImageRecords keeps who may use which image over restarts.
type ImageRecords interface {
	All() (map[string]*record.Image, error)
	Put(key string, r *record.Image) error
	Delete(key string) error
}

// credential is a registry login and the Secret that holds it, or the node's own.
type credential struct {
	auth   *criv1.AuthConfig
	secret record.ImagePullSecret // without its hash
	node   bool
}

// Access remembers with which credentials images were pulled, and asks other
// pods for them. An image has a record from before its first pull on, so that
// a crash does not open it.
type Access struct {
	Policy    VerifyPolicy // "" = NeverVerifyPreloadedImages, as upstream
	Allowlist []string     // names, or prefixes that end in "/*"
	Records   ImageRecords
	Images    criapi.ImageManagerService
	Log       *slog.Logger

	mu      sync.Mutex
	byRef   map[string]*record.Image
	pulling map[string]int // pulls by the name asked for
}

func (a *Access) policy() VerifyPolicy {
	if a.Policy == "" {
		return NeverVerifyPreloadedImages
	}
	return a.Policy
}

// Load reads the records. What was being pulled when the agent ended, and is
// there, belongs to nobody until somebody shows credentials.
func (a *Access) Load(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	all, err := a.Records.All()
	if err != nil {
		return fmt.Errorf("image pull records: %w", err)
	}
	a.byRef, a.pulling = map[string]*record.Image{}, map[string]int{}
	if len(all) == 0 {
		return nil
	}
	for _, r := range all {
		if r.Pulling {
			a.pulling[r.Ref]++
		} else {
			a.byRef[r.Ref] = r
		}
	}
	list, err := a.Images.ListImages(ctx, nil)
	if err != nil {
		a.Log.Warn("images are not listed; pulls that a crash cut off count as under way", "err", err)
		return nil
	}
	for _, i := range list {
		if err := a.closeCutOff(i); err != nil {
			return err
		}
	}
	for image := range a.pulling {
		if err := a.Records.Delete(pullKey(image)); err != nil {
			return fmt.Errorf("image pull records: %w", err)
		}
	}
	clear(a.pulling)
	a.prune(list)
	return nil
}

// closeCutOff gives an image a name that nobody may use yet, if the pull of it
// by this name was cut off.
func (a *Access) closeCutOff(i *criv1.Image) error {
	for _, n := range slices.Concat(i.RepoTags, i.RepoDigests) {
		name, r := registry.Repository(n), a.byRef[i.Id]
		if !a.isPulling(name) || r != nil && r.Names[name] != nil {
			continue
		}
		next := record.Image{Ref: i.Id}
		if r != nil {
			next = *r
		}
		next.Names = maps.Clone(next.Names)
		if next.Names == nil {
			next.Names = map[string]*record.ImageAccess{}
		}
		next.Names[name] = &record.ImageAccess{}
		if err := a.put(&next); err != nil {
			return err
		}
	}
	return nil
}

// recordKey is a record's file name: references have no length that a file
// system must take.
func recordKey(ref string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(ref))) }

func pullKey(image string) string { return "pulling-" + recordKey(image) }

// Begin notes a pull before it starts.
func (a *Access) Begin(image string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pulling[image] == 0 {
		if err := a.Records.Put(pullKey(image), &record.Image{Ref: image, Pulling: true}); err != nil {
			return fmt.Errorf("image pull record: %w", err)
		}
	}
	a.pulling[image]++
	return nil
}

// End notes what became of the pull: ref is "" when it failed, c nil when no
// credentials were needed. A record that cannot be written leaves the note of
// the pull, so that the image stays closed.
func (a *Access) End(ctx context.Context, image, ref string, c *credential) error {
	var list []*criv1.Image
	if ref != "" {
		var err error
		if list, err = a.Images.ListImages(ctx, nil); err != nil {
			list = nil // the next pull prunes
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if ref != "" {
		if err := a.allow(image, ref, c); err != nil {
			return err
		}
		a.prune(list)
	}
	if a.pulling[image]--; a.pulling[image] > 0 {
		return nil
	}
	delete(a.pulling, image)
	return a.Records.Delete(pullKey(image))
}

// allow adds to an image's record.
func (a *Access) allow(image, ref string, c *credential) error {
	r := a.byRef[ref]
	if r == nil {
		r = &record.Image{Ref: ref}
	}
	next := *r
	if len(next.Salt) == 0 {
		next.Salt = make([]byte, sha256.Size)
		if _, err := rand.Read(next.Salt); err != nil {
			return err
		}
	}
	next.Names = maps.Clone(r.Names)
	if next.Names == nil {
		next.Names = map[string]*record.ImageAccess{}
	}
	name := registry.Repository(image)
	access := record.ImageAccess{Everyone: c == nil}
	if old := next.Names[name]; old != nil && c != nil {
		access.Everyone = old.Everyone
		access.Secrets = slices.DeleteFunc(slices.Clone(old.Secrets),
			func(s record.ImagePullSecret) bool { return sameSecret(s, c.secret) })
	} else if old == nil && len(next.Names) >= maxAccessNames {
		clear(next.Names) // their users show their credentials again
		next.Strict = true
	}
	if c != nil && !access.Everyone {
		s := c.secret
		s.Hash = hashOf(next.Salt, c.auth)
		access.Secrets = append(access.Secrets, s)
		if n := len(access.Secrets); n > maxAccessSecrets {
			access.Secrets = access.Secrets[n-maxAccessSecrets:]
		}
	}
	next.Names[name] = &access
	return a.put(&next)
}

func (a *Access) put(r *record.Image) error {
	r.Updated = time.Now()
	if err := a.Records.Put(recordKey(r.Ref), r); err != nil {
		return fmt.Errorf("image pull record: %w", err)
	}
	a.byRef[r.Ref] = r
	return nil
}

// prune drops the records of images that are not in the list.
func (a *Access) prune(list []*criv1.Image) {
	if len(list) == 0 {
		return
	}
	there := map[string]bool{}
	for _, i := range list {
		there[i.Id] = true
	}
	for ref, r := range a.byRef {
		if there[ref] || time.Since(r.Updated) < pruneAfter {
			continue
		}
		if err := a.Records.Delete(recordKey(ref)); err != nil {
			a.Log.Warn("the record of an image that is gone stays", "image", ref, "err", err)
			continue
		}
		delete(a.byRef, ref)
	}
}

// pruneAfter keeps a record whose image was pulled after the list was made.
const pruneAfter = time.Minute

// MustPull tells whether a pod has to pull an image that is there, to show
// that it may use it.
func (a *Access) MustPull(image string, there *criv1.Image, credentials []credential) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.byRef[there.Id]
	if !a.verifies(image, a.isPulled(image, there, r)) {
		return false
	}
	if r == nil {
		return true
	}
	access := r.Names[registry.Repository(image)]
	if access == nil {
		return true
	}
	if access.Everyone {
		return false
	}
	for i := range credentials {
		c := &credentials[i]
		hash := hashOf(r.Salt, c.auth)
		for _, s := range access.Secrets {
			same := hmac.Equal(s.Hash, hash)
			if !same && !sameSecret(s, c.secret) {
				continue
			}
			if !same || !sameSecret(s, c.secret) { // it counts by itself from now on
				if err := a.allow(image, r.Ref, c); err != nil {
					a.Log.Warn("who may use an image is not kept; it is pulled again later", "image", image, "err", err)
				}
			}
			return false
		}
	}
	return true
}

// verifies is the policy.
func (a *Access) verifies(image string, pulled bool) bool {
	switch a.policy() {
	case NeverVerify:
		return false
	case NeverVerifyPreloadedImages:
		return pulled
	case NeverVerifyAllowlistedImages:
		return pulled || !a.allowlisted(image)
	}
	return true
}

func (a *Access) allowlisted(image string) bool {
	name := registry.Repository(image)
	return slices.ContainsFunc(a.Allowlist, func(entry string) bool {
		if prefix, ok := strings.CutSuffix(entry, "*"); ok {
			return strings.HasPrefix(name, prefix) || strings.HasPrefix(name, "docker.io/"+prefix)
		}
		return name == registry.Repository(entry)
	})
}

// isPulled tells whether the image came by the agent under the name that is
// asked for. The same content can have other names too: what was imported
// stays open by its own name, whatever a pod pulls afterwards.
func (a *Access) isPulled(image string, there *criv1.Image, r *record.Image) bool {
	name := registry.Repository(image)
	if a.knows(name, r) {
		return true
	}
	names := slices.Concat(there.RepoTags, there.RepoDigests)
	imported := false
	for _, n := range names {
		repo := registry.Repository(n)
		if repo == name {
			return false
		}
		imported = imported || !a.knows(repo, r)
	}
	return !imported && (r != nil || len(names) > 0) // asked for by its ID
}

// knows tells whether an image was, or is being, pulled under a name.
func (a *Access) knows(name string, r *record.Image) bool {
	return r != nil && (r.Strict || r.Names[name] != nil) || a.isPulling(name)
}

func (a *Access) isPulling(name string) bool {
	for p := range a.pulling {
		if registry.Repository(p) == name {
			return true
		}
	}
	return false
}

func sameSecret(a, b record.ImagePullSecret) bool {
	return a.UID != "" && a.UID == b.UID && a.Namespace == b.Namespace && a.Name == b.Name
}

// hashOf is what is kept of credentials: with the record's own key, so that
// equal ones do not show.
func hashOf(salt []byte, c *criv1.AuthConfig) []byte {
	h := hmac.New(sha256.New, salt)
	parts, err := json.Marshal([]string{c.GetUsername(), c.GetPassword(), c.GetAuth(),
		c.GetIdentityToken(), c.GetRegistryToken(), c.GetServerAddress()})
	if err != nil {
		return nil // strings always encode
	}
	h.Write(parts)
	return h.Sum(nil)
}
