package extender

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

const (
	// defaultTimeout is upstream's for one request.
	defaultTimeout = 5 * time.Second
	// maxAnswer bounds what an extender answers: five thousand whole nodes have room.
	maxAnswer = 256 << 20
	// scale brings an extender's scores, up to MaxExtenderPriority, to those of plugins.
	scale = framework.MaxScore / extenderv1.MaxExtenderPriority
)

// Extender is one program, at a URL.
type Extender struct {
	c       configv1.Extender
	client  *http.Client
	managed sets.Set[string]
}

// New makes the extenders of a configuration, those whose errors count first, and
// tells the resources that the scheduler itself is not to count.
func New(list []configv1.Extender) (extenders []*Extender, ignored []string, err error) {
	if err := validate(list); err != nil {
		return nil, nil, err
	}
	var last []*Extender
	for i := range list {
		e, err := newExtender(list[i])
		if err != nil {
			return nil, nil, fmt.Errorf("extenders[%d].tlsConfig: %w", i, err)
		}
		if e.c.Ignorable {
			last = append(last, e)
		} else {
			extenders = append(extenders, e)
		}
		for _, r := range e.c.ManagedResources {
			if r.IgnoredByScheduler {
				ignored = append(ignored, r.Name)
			}
		}
	}
	return append(extenders, last...), ignored, nil
}

func validate(list []configv1.Extender) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	binders, seen := 0, map[string]bool{}
	for i := range list {
		e := &list[i]
		if e.URLPrefix == "" {
			bad("extenders[%d].urlPrefix: Required value: give the URL that the verbs are below", i)
		}
		if e.PrioritizeVerb != "" && e.Weight <= 0 {
			bad("extenders[%d].weight: Invalid value: %d: must have a positive weight applied to it", i, e.Weight)
		}
		if e.BindVerb != "" {
			binders++
		}
		for j, r := range e.ManagedResources {
			at := fmt.Sprintf("extenders[%d].managedResources[%d].name", i, j)
			for _, why := range validation.IsQualifiedName(r.Name) {
				bad("%s: Invalid value: %q: %s", at, r.Name, why)
			}
			if !strings.Contains(r.Name, "/") || strings.Contains(r.Name, corev1.ResourceDefaultNamespacePrefix) {
				bad("%s: Invalid value: %q: is an invalid extended resource name", at, r.Name)
			}
			if seen[r.Name] {
				bad("%s: Invalid value: %q: duplicate extender managed resource name", at, r.Name)
			}
			seen[r.Name] = true
		}
	}
	if binders > 1 {
		bad("extenders: Invalid value: found %d extenders implementing bind: only one extender can implement bind",
			binders)
	}
	return errors.Join(errs...)
}

func newExtender(c configv1.Extender) (*Extender, error) {
	var transport rest.Config
	if t := c.TLSConfig; t != nil {
		transport.TLSClientConfig = rest.TLSClientConfig{Insecure: t.Insecure, ServerName: t.ServerName,
			CertFile: t.CertFile, KeyFile: t.KeyFile, CAFile: t.CAFile, CertData: t.CertData, KeyData: t.KeyData,
			CAData: t.CAData}
	}
	if c.EnableHTTPS && transport.CAFile == "" && len(transport.CAData) == 0 {
		transport.Insecure = true
	}
	config, err := rest.TLSConfigFor(&transport)
	if err != nil {
		return nil, err
	}
	if c.HTTPTimeout.Duration == 0 {
		c.HTTPTimeout.Duration = defaultTimeout
	}
	e := &Extender{c: c, managed: sets.New[string](), client: &http.Client{Timeout: c.HTTPTimeout.Duration,
		Transport: net.SetTransportDefaults(&http.Transport{TLSClientConfig: config})}}
	for _, r := range c.ManagedResources {
		e.managed.Insert(r.Name)
	}
	return e, nil
}

// Name is the URL.
func (e *Extender) Name() string { return e.c.URLPrefix }

// Ignorable tells whether pods are scheduled without it when it fails.
func (e *Extender) Ignorable() bool { return e.c.Ignorable }

// Filters, Prioritizes, Preempts and Binds tell what it is asked.
func (e *Extender) Filters() bool { return e.c.FilterVerb != "" }

// Prioritizes tells whether it scores nodes.
func (e *Extender) Prioritizes() bool { return e.c.PrioritizeVerb != "" }

// Preempts tells whether it looks at victims of preemption.
func (e *Extender) Preempts() bool { return e.c.PreemptVerb != "" }

// Binds tells whether it binds pods in the scheduler's place.
func (e *Extender) Binds() bool { return e.c.BindVerb != "" }

// Interested tells whether it is asked about a pod: about all, or about those with
// one of its resources.
func (e *Extender) Interested(pod *corev1.Pod) bool {
	wants := func(list []corev1.Container) bool {
		return slices.ContainsFunc(list, func(c corev1.Container) bool {
			has := func(r corev1.ResourceList) bool {
				for name := range r {
					if e.managed.Has(string(name)) {
						return true
					}
				}
				return false
			}
			return has(c.Resources.Requests) || has(c.Resources.Limits)
		})
	}
	return len(e.managed) == 0 || wants(pod.Spec.Containers) || wants(pod.Spec.InitContainers)
}

// Verdict is what an extender says of nodes: which are good, and why others are not.
type Verdict struct {
	Passed sets.Set[string]
	// Failed nodes may be good without some pods, Unresolvable ones are never.
	Failed, Unresolvable map[string]string
}

// Filter asks which of the nodes are good for a pod.
func (e *Extender) Filter(ctx context.Context, pod *corev1.Pod, nodes []*corev1.Node) (Verdict, error) {
	var result extenderv1.ExtenderFilterResult
	if err := e.send(ctx, e.c.FilterVerb, e.args(pod, nodes), &result); err != nil {
		return Verdict{}, err
	}
	if result.Error != "" {
		return Verdict{}, errors.New(result.Error)
	}
	var names []string
	if e.c.NodeCacheCapable && result.NodeNames != nil {
		names = *result.NodeNames
	} else if result.Nodes != nil {
		for i := range result.Nodes.Items {
			names = append(names, result.Nodes.Items[i].Name)
		}
	}
	asked := sets.New[string]()
	for _, n := range nodes {
		asked.Insert(n.Name)
	}
	for _, name := range names {
		if !asked.Has(name) {
			return Verdict{}, fmt.Errorf(
				"extender %q claims a filtered node %q which is not found in the input node list", e.Name(), name)
		}
	}
	return Verdict{Passed: sets.New(names...), Failed: result.FailedNodes,
		Unresolvable: result.FailedAndUnresolvableNodes}, nil
}

// Prioritize asks how good the nodes are, and returns what to add to their scores.
func (e *Extender) Prioritize(ctx context.Context, pod *corev1.Pod, nodes []*corev1.Node) (map[string]int64, error) {
	var result extenderv1.HostPriorityList
	if err := e.send(ctx, e.c.PrioritizeVerb, e.args(pod, nodes), &result); err != nil {
		return nil, err
	}
	out := map[string]int64{}
	for _, h := range result {
		out[h.Host] += h.Score * e.c.Weight * scale
	}
	return out, nil
}

func (e *Extender) args(pod *corev1.Pod, nodes []*corev1.Node) *extenderv1.ExtenderArgs {
	args := &extenderv1.ExtenderArgs{Pod: pod}
	if e.c.NodeCacheCapable {
		names := make([]string, 0, len(nodes))
		for _, n := range nodes {
			names = append(names, n.Name)
		}
		args.NodeNames = &names
		return args
	}
	args.Nodes = &corev1.NodeList{}
	for _, n := range nodes {
		args.Nodes.Items = append(args.Nodes.Items, *n)
	}
	return args
}

// Victims are the pods that would have to go from a node, and how many disruption
// budgets that would break.
type Victims = extenderv1.Victims

// Preempt shows the victims by node, and returns those that are left: of fewer
// nodes, perhaps others of the same nodes' pods.
func (e *Extender) Preempt(ctx context.Context, pod *corev1.Pod, victims map[string]*Victims,
	podsOf func(node string) []*corev1.Pod) (map[string]*Victims, error) {
	args := &extenderv1.ExtenderPreemptionArgs{Pod: pod, NodeNameToVictims: victims}
	if e.c.NodeCacheCapable {
		args.NodeNameToVictims, args.NodeNameToMetaVictims = nil, map[string]*extenderv1.MetaVictims{}
		for node, v := range victims {
			m := &extenderv1.MetaVictims{Pods: []*extenderv1.MetaPod{}, NumPDBViolations: v.NumPDBViolations}
			for _, p := range v.Pods {
				m.Pods = append(m.Pods, &extenderv1.MetaPod{UID: string(p.UID)})
			}
			args.NodeNameToMetaVictims[node] = m
		}
	}
	var result extenderv1.ExtenderPreemptionResult
	if err := e.send(ctx, e.c.PreemptVerb, args, &result); err != nil {
		return nil, err
	}
	out := map[string]*Victims{}
	for _, node := range slices.Sorted(maps.Keys(result.NodeNameToMetaVictims)) {
		m := result.NodeNameToMetaVictims[node]
		if victims[node] == nil || m == nil {
			return nil, fmt.Errorf("extender %q names node %q, which is no candidate", e.Name(), node)
		}
		v := &Victims{NumPDBViolations: m.NumPDBViolations}
		for _, meta := range m.Pods {
			i := -1
			pods := podsOf(node)
			if meta != nil {
				i = slices.IndexFunc(pods, func(p *corev1.Pod) bool { return string(p.UID) == meta.UID })
			}
			if i < 0 {
				return nil, fmt.Errorf(
					"extender: %v claims to preempt pod (UID: %v) on node: %v, but the pod is not found on that node",
					e.Name(), meta, node)
			}
			v.Pods = append(v.Pods, pods[i])
		}
		out[node] = v
	}
	return out, nil
}

// Bind has the extender bind the pod.
func (e *Extender) Bind(ctx context.Context, pod *corev1.Pod, node string) error {
	var result extenderv1.ExtenderBindingResult
	if err := e.send(ctx, e.c.BindVerb, &extenderv1.ExtenderBindingArgs{PodName: pod.Name, PodNamespace: pod.Namespace,
		PodUID: pod.UID, Node: node}, &result); err != nil {
		return err
	}
	if result.Error != "" {
		return errors.New(result.Error)
	}
	return nil
}

func (e *Extender) send(ctx context.Context, verb string, args, result any) error {
	body, err := json.Marshal(args)
	if err != nil {
		return err
	}
	url := strings.TrimRight(e.c.URLPrefix, "/") + "/" + verb
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := e.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("failed %v with extender at URL %v, code %v", verb, url, resp.StatusCode)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(result); err != nil {
		return fmt.Errorf("read answer of extender at URL %v: %w", url, err)
	}
	return nil
}
