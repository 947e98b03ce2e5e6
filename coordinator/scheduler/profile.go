package scheduler

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
	"github.com/shoal-project/shoal/coordinator/scheduler/plugins"
)

// Profile is a set of plugins under a scheduler name, ready for use.
type Profile struct {
	Name string
	// percentage of nodes to score; 0 adapts it to the size of the cluster.
	percentage int32

	preEnqueue []framework.PreEnqueuePlugin
	sort       framework.QueueSortPlugin
	filters    []framework.FilterPlugin
	postFilter []framework.PostFilterPlugin
	scores     []weighted
	reserve    []framework.ReservePlugin
	permit     []framework.PermitPlugin
	preBind    []framework.PreBindPlugin
	bind       []framework.BindPlugin
	postBind   []framework.PostBindPlugin

	// signers covers all filters and scores; nil when one of them cannot sign.
	signers []framework.SignPlugin
	hints   map[string][]framework.EventHint
}

// patience is how long the profile's plugins may wait for what a pod is bound with.
func (p *Profile) patience() time.Duration {
	limit := claimsTimeout
	for _, pl := range p.preBind {
		if patient, ok := pl.(interface{ Patience() time.Duration }); ok {
			limit = max(limit, patient.Patience()+bindTimeout)
		}
	}
	return limit
}

type weighted struct {
	framework.ScorePlugin
	weight int64
}

// Points of the framework at which a plugin can be switched on and off.
const (
	pointPreEnqueue = "preEnqueue"
	pointQueueSort  = "queueSort"
	pointPreFilter  = "preFilter"
	pointFilter     = "filter"
	pointPostFilter = "postFilter"
	pointPreScore   = "preScore"
	pointScore      = "score"
	pointReserve    = "reserve"
	pointPermit     = "permit"
	pointPreBind    = "preBind"
	pointBind       = "bind"
	pointPostBind   = "postBind"
)

// implements reports whether a plugin has an extension point.
func implements(p framework.Plugin, point string) (ok bool) {
	switch point {
	case pointPreEnqueue:
		_, ok = p.(framework.PreEnqueuePlugin)
	case pointQueueSort:
		_, ok = p.(framework.QueueSortPlugin)
	case pointPreFilter, pointFilter:
		_, ok = p.(framework.FilterPlugin)
	case pointPostFilter:
		_, ok = p.(framework.PostFilterPlugin)
	case pointPreScore, pointScore:
		_, ok = p.(framework.ScorePlugin)
	case pointReserve:
		_, ok = p.(framework.ReservePlugin)
	case pointPermit:
		_, ok = p.(framework.PermitPlugin)
	case pointPreBind:
		_, ok = p.(framework.PreBindPlugin)
	case pointBind:
		_, ok = p.(framework.BindPlugin)
	case pointPostBind:
		_, ok = p.(framework.PostBindPlugin)
	}
	return ok
}

// add puts a plugin in at a point that it implements.
func (p *Profile) add(pl framework.Plugin, point string, weight int64) {
	switch point {
	case pointPreEnqueue:
		p.preEnqueue = append(p.preEnqueue, pl.(framework.PreEnqueuePlugin))
	case pointQueueSort:
		p.sort = pl.(framework.QueueSortPlugin)
	case pointFilter:
		p.filters = append(p.filters, pl.(framework.FilterPlugin))
	case pointPostFilter:
		p.postFilter = append(p.postFilter, pl.(framework.PostFilterPlugin))
	case pointScore:
		p.scores = append(p.scores, weighted{pl.(framework.ScorePlugin), weight})
	case pointReserve:
		p.reserve = append(p.reserve, pl.(framework.ReservePlugin))
	case pointPermit:
		p.permit = append(p.permit, pl.(framework.PermitPlugin))
	case pointPreBind:
		p.preBind = append(p.preBind, pl.(framework.PreBindPlugin))
	case pointBind:
		p.bind = append(p.bind, pl.(framework.BindPlugin))
	case pointPostBind:
		p.postBind = append(p.postBind, pl.(framework.PostBindPlugin))
	}
	if e, ok := pl.(framework.EventPlugin); ok {
		p.hints[pl.Name()] = e.Events()
	}
}

// finish checks the profile and works out whether its pods can share work.
func (p *Profile) finish() error {
	if p.sort == nil {
		return fmt.Errorf("profile %q: a queueSort plugin is required", p.Name)
	}
	if len(p.bind) == 0 {
		return fmt.Errorf("profile %q: at least one bind plugin is needed", p.Name)
	}
	var all []framework.Plugin
	for _, f := range p.filters {
		all = append(all, f)
	}
	for _, s := range p.scores {
		all = append(all, s.ScorePlugin)
	}
	seen := map[string]bool{}
	for _, pl := range all {
		s, ok := pl.(framework.SignPlugin)
		if !ok {
			p.signers = nil
			return nil
		}
		if !seen[pl.Name()] {
			seen[pl.Name()] = true
			p.signers = append(p.signers, s)
		}
	}
	return nil
}

// sign appends the key of the pod's class.
func (p *Profile) sign(key []byte, pod *framework.PodInfo, snap *framework.Snapshot) ([]byte, bool) {
	if p.signers == nil {
		return key, false
	}
	ok := true
	for _, s := range p.signers {
		if key, ok = s.Sign(key, pod, snap); !ok {
			return key, false
		}
	}
	return key, true
}

// runPreEnqueue returns the first refusal.
func (p *Profile) runPreEnqueue(pod *corev1.Pod) *framework.Status {
	for _, pl := range p.preEnqueue {
		if s := pl.PreEnqueue(pod); !s.OK() {
			return s.By(pl.Name())
		}
	}
	return nil
}

// DefaultProfile is the profile that applies without a configuration.
func DefaultProfile(d *plugins.Deps) (*Profile, error) {
	return profileSpec{name: corev1.DefaultSchedulerName}.build(d)
}

// profileSpec is a profile as configured.
type profileSpec struct {
	name       string
	percentage int32
	points     map[string][]configured // nil: the defaults
	args       map[string][]byte
}

type configured struct {
	name   string
	weight int64
	// explicit means named for this very point, not by multiPoint.
	explicit bool
}

var points = []string{pointPreEnqueue, pointQueueSort, pointPreFilter, pointFilter, pointPostFilter, pointPreScore,
	pointScore, pointReserve, pointPermit, pointPreBind, pointBind, pointPostBind}

// build makes the plugins. One that is off at preFilter or preScore is off at
// filter or score, too: it could not work there.
func (s profileSpec) build(d *plugins.Deps) (*Profile, error) {
	p := &Profile{Name: s.name, percentage: s.percentage, hints: map[string][]framework.EventHint{}}
	made := map[string]framework.Plugin{}
	for _, point := range points {
		if point == pointPreFilter || point == pointPreScore {
			continue
		}
		for _, c := range s.at(point) {
			pl := made[c.name]
			if pl == nil {
				factory, ok := plugins.Registry[c.name]
				if !ok {
					return nil, fmt.Errorf("profile %q: plugin %q does not exist; known are %v", s.name,
						c.name, plugins.Names())
				}
				var err error
				if pl, err = factory(s.args[c.name], d); err != nil {
					return nil, fmt.Errorf("profile %q: initializing plugin %q: %w", s.name, c.name, err)
				}
				made[c.name] = pl
			}
			if !implements(pl, point) && c.explicit {
				return nil, fmt.Errorf("profile %q: plugin %q does not extend %s plugin", s.name, c.name, point)
			}
			if point == pointQueueSort && p.sort != nil && implements(pl, point) {
				return nil,
					fmt.Errorf(
						"only one queue sort plugin required for profile with scheduler name %q, but got %s and %s",
						s.name, p.sort.Name(), c.name)
			}
			if implements(pl, point) && s.alsoAt(c.name, point) {
				p.add(pl, point, max(c.weight, 1))
			}
		}
	}
	return p, p.finish()
}

// buildAll builds all profiles. As there is one queue, they must order it alike.
func buildAll(specs []profileSpec, deps func(scheduler string) *plugins.Deps) ([]*Profile, error) {
	var out []*Profile
	for _, spec := range specs {
		p, err := spec.build(deps(spec.name))
		if err != nil {
			return nil, err
		}
		if out = append(out, p); p.sort.Name() != out[0].sort.Name() {
			return nil, fmt.Errorf("profile %q: queueSort plugin has to match for all profiles", p.Name)
		}
	}
	return out, nil
}

func (s profileSpec) at(point string) []configured {
	if s.points != nil {
		return s.points[point]
	}
	out := make([]configured, 0, len(plugins.Defaults))
	for _, d := range plugins.Defaults {
		out = append(out, configured{name: d.Name, weight: d.Weight})
	}
	return out
}

func (s profileSpec) alsoAt(name, point string) bool {
	before := map[string]string{pointFilter: pointPreFilter, pointScore: pointPreScore}[point]
	return s.points == nil || before == "" ||
		slices.ContainsFunc(s.points[before], func(c configured) bool { return c.name == name })
}
