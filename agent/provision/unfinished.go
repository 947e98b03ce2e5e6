package provision

import (
	"context"
	"fmt"
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Unfinished is a volume that was begun for a claim, and that no object of the API
// names yet. It has two steps:
//
//	        Volume is nil          Volume is set             no record
//	begun ──────────────> made ─────────────────────> told ──────────> the API names it
//	      CreateVolume          PersistentVolume created
//
// When its claim goes meanwhile, a volume that was begun is deleted: nobody can have
// been told of it. Of one that was made, the API may have had the PersistentVolume,
// and a user may have deleted that to keep the data; so it is told again, and what
// becomes of the volume is decided by its reclaim policy, as of any other.
type Unfinished struct {
	Namespace, Claim string
	UID              types.UID
	Volume           *corev1.PersistentVolume `json:",omitempty"`
}

func (u *Unfinished) of() key { return key{u.Namespace, u.Claim} }

// Records keeps what is unfinished over restarts, by the volumes' names.
type Records interface {
	All() (map[string]*Unfinished, error)
	// PutNow returns when the record is on the disk.
	PutNow(name string, u *Unfinished) error
	Delete(name string) error
}

// journal is what Records has, and which volumes the API was told of since.
type journal struct {
	Records
	mu    sync.Mutex
	begun map[string]*Unfinished
	// told keeps a volume from being begun once more while its PersistentVolume has
	// not been seen: the record would say that nobody was told of it.
	told map[string]key
}

func openJournal(r Records) (*journal, error) {
	begun, err := r.All()
	if err != nil {
		return nil, fmt.Errorf("read which volumes are unfinished: %w", err)
	}
	j := &journal{Records: r, begun: map[string]*Unfinished{}, told: map[string]key{}}
	maps.Copy(j.begun, begun)
	return j, nil
}

// put has a volume's record on the disk.
func (j *journal) put(name string, u *Unfinished) error {
	if err := j.PutNow(name, u); err != nil {
		return fmt.Errorf("record volume %s: %w", name, err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.begun[name] = u
	return nil
}

// begin records that the driver is asked next, unless it was before.
func (j *journal) begin(name string, claim *corev1.PersistentVolumeClaim) error {
	j.mu.Lock()
	_, ok := j.begun[name]
	j.mu.Unlock()
	if ok {
		return nil
	}
	return j.put(name, &Unfinished{Namespace: claim.Namespace, Claim: claim.Name, UID: claim.UID})
}

// finish forgets a volume that the API has, or that is gone.
func (j *journal) finish(name string) error {
	j.mu.Lock()
	u, ok := j.begun[name]
	if ok && u.Volume != nil {
		j.told[name] = u.of()
	}
	j.mu.Unlock()
	if !ok {
		return nil
	}
	if err := j.Delete(name); err != nil {
		return fmt.Errorf("forget that volume %s is unfinished: %w", name, err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.begun, name)
	return nil
}

// wasTold tells whether the API has a volume, or had it.
func (j *journal) wasTold(name string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	_, ok := j.told[name]
	return ok
}

// of is what was begun for claims of a name. What the API was told of for others than
// claim is forgotten.
func (j *journal) of(k key, claim *corev1.PersistentVolumeClaim) map[string]*Unfinished {
	j.mu.Lock()
	defer j.mu.Unlock()
	maps.DeleteFunc(j.told, func(name string, of key) bool {
		return of == k && (claim == nil || claim.Spec.VolumeName != "" || name != volumeName(claim))
	})
	out := maps.Clone(j.begun)
	maps.DeleteFunc(out, func(_ string, u *Unfinished) bool { return u.of() != k })
	return out
}

// claims are those of all that is unfinished.
func (j *journal) claims() []key {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []key
	for _, u := range j.begun {
		out = append(out, u.of())
	}
	return out
}

// settle ends what was begun for claims of a name and is not to be made any more.
// claim is the one of that name that this node serves, nil for none.
func (p *Provisioner) settle(ctx context.Context, k key, claim *corev1.PersistentVolumeClaim) error {
	for name, u := range p.journal.of(k, claim) {
		mine := claim != nil && claim.UID == u.UID
		var err error
		switch {
		case p.volumes.get(key{name: name}) != nil, mine && claim.Spec.VolumeName == name:
			err = p.journal.finish(name)
		case mine && claim.Spec.VolumeName == "":
			// It is being made.
		case !p.claims.complete.Load() || !p.volumes.complete.Load():
			// It is looked at again when all is known.
		default:
			err = p.abandon(ctx, name, u)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// abandon leaves a volume to its reclaim policy, or deletes it if the API cannot know
// of it. The driver calls a volume by its name.
func (p *Provisioner) abandon(ctx context.Context, name string, u *Unfinished) error {
	defer p.changed()
	if u.Volume == nil {
		if err := p.Driver.Delete(ctx, name); err != nil {
			return fmt.Errorf("delete volume %s, which was begun for a claim that is gone: %w", name, err)
		}
		p.Log.Info("a volume was deleted that was begun for a claim that is gone", "volume", name,
			"claim", u.Namespace+"/"+u.Claim)
		return p.journal.finish(name)
	}
	return p.announce(ctx, u.Volume)
}

// announce tells the API of a volume that was made.
func (p *Provisioner) announce(ctx context.Context, pv *corev1.PersistentVolume) error {
	_, err := p.Client.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create PersistentVolume %s: %w", pv.Name, err)
	}
	return p.journal.finish(pv.Name)
}

// complete has what is unfinished looked at once all is known, and the claims that
// waited for it.
func (p *Provisioner) complete() {
	if !p.claims.complete.Load() || !p.volumes.complete.Load() {
		return
	}
	for _, k := range p.journal.claims() {
		p.queue.Add(k)
	}
	for _, obj := range p.claims.List() {
		if c, ok := obj.(*corev1.PersistentVolumeClaim); ok {
			p.queue.Add(key{c.Namespace, c.Name})
		}
	}
}
