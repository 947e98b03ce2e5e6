package servicecidr

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// heard is how long every coordinator is given to hear that a range is going,
// before it goes.
const heard = 10 * time.Second

type ranges struct {
	client    kubernetes.Interface
	cidrs     networkinglisters.ServiceCIDRLister
	addresses networkinglisters.IPAddressLister
	events    record.EventRecorder
	// configured are the ranges of the default ServiceCIDR.
	configured []string
	warned     bool
}

// New builds the controller of ServiceCIDRs. configured are the default one's
// ranges.
func New(env controller.Env, configured []string) (*controller.Loop, error) {
	n := env.Informers.Networking().V1()
	r := &ranges{
		client: env.Client, cidrs: n.ServiceCIDRs().Lister(), addresses: n.IPAddresses().Lister(),
		events: env.Recorder("service-cidr-controller"), configured: configured,
	}
	loop := controller.New("service-cidr", 1, env.Log)
	loop.Reconciler = r
	controller.Watch(loop, n.ServiceCIDRs().Informer(), func(old, c *networkingv1.ServiceCIDR) {
		if c != nil {
			loop.Add(c.Name)
			if old != nil {
				return
			}
		} else {
			c = old
			loop.Add(c.Name)
		}
		// A range that comes or goes may let another go, or keep it.
		for _, o := range r.list() {
			if o.DeletionTimestamp != nil && overlap(o, c) {
				loop.Add(o.Name)
			}
		}
	})
	controller.Watch(loop, n.IPAddresses().Informer(), func(old, a *networkingv1.IPAddress) {
		if a == nil {
			a = old
		} else if old != nil {
			return
		}
		ip, err := netip.ParseAddr(a.Name)
		if err != nil {
			return
		}
		for _, c := range r.list() {
			if c.DeletionTimestamp != nil && gives(c, ip) {
				loop.Add(c.Name)
			}
		}
	})
	loop.Started = func(context.Context) { loop.Add(Default) }
	return loop, nil
}

func (r *ranges) list() []*networkingv1.ServiceCIDR {
	list, err := r.cidrs.List(labels.Everything())
	if err != nil {
		return nil
	}
	return list
}

// Reconcile makes a range ready, or lets it go when nobody needs it.
func (r *ranges) Reconcile(ctx context.Context, name string) (time.Duration, error) {
	c, err := r.cidrs.Get(name)
	if apierrors.IsNotFound(err) {
		return 0, r.ensureDefault(ctx, name)
	} else if err != nil {
		return 0, err
	}
	if c.DeletionTimestamp != nil {
		return r.letGo(ctx, c)
	}
	if name == Default {
		if c, err = r.widen(ctx, c); err != nil {
			return 0, err
		}
	}
	if !slices.Contains(c.Finalizers, finalizer) {
		c = c.DeepCopy()
		c.Finalizers = append(c.Finalizers, finalizer)
		if c, err = r.client.NetworkingV1().ServiceCIDRs().Update(ctx, c, metav1.UpdateOptions{}); err != nil {
			return 0, controller.IgnoreGone(err)
		}
	}
	if err := r.setCondition(ctx, c, readyCondition); err != nil {
		r.events.Event(c, corev1.EventTypeWarning, "KubernetesServiceCIDRError", "The ServiceCIDR Status can not be set to Ready=True")
		return 0, err
	}
	return 0, nil
}

func (r *ranges) ensureDefault(ctx context.Context, name string) error {
	if name != Default || len(r.configured) == 0 {
		return nil
	}
	_, err := r.client.NetworkingV1().ServiceCIDRs().Create(ctx, &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: Default}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: r.configured},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// widen gives the default range its second family when one is configured. Any
// other difference is told, once.
func (r *ranges) widen(ctx context.Context, c *networkingv1.ServiceCIDR) (*networkingv1.ServiceCIDR, error) {
	have, want := c.Spec.CIDRs, r.configured
	if len(want) == 0 || slices.Equal(have, want) {
		return c, nil
	}
	if len(have) == 1 && len(want) == 2 && have[0] == want[0] {
		c = c.DeepCopy()
		c.Spec.CIDRs = want
		return r.client.NetworkingV1().ServiceCIDRs().Update(ctx, c, metav1.UpdateOptions{})
	}
	if !r.warned {
		r.warned = true
		r.events.Eventf(c, corev1.EventTypeWarning, "KubernetesDefaultServiceCIDRInconsistent",
			"The default ServiceCIDR %v does not match the controller flag configurations %s", have, want)
	}
	return c, nil
}

func (r *ranges) letGo(ctx context.Context, c *networkingv1.ServiceCIDR) (time.Duration, error) {
	if !slices.Contains(c.Finalizers, finalizer) {
		return 0, nil
	}
	addresses, err := r.addresses.List(labels.Everything())
	if err != nil {
		return 0, err
	}
	if needed(c, r.list(), addresses) {
		return 0, r.setCondition(ctx, c, terminatingCondition)
	}
	if left := time.Until(c.DeletionTimestamp.Add(heard)); left > 0 {
		return left, nil
	}
	c = c.DeepCopy()
	c.Finalizers = slices.DeleteFunc(c.Finalizers, func(f string) bool { return f == finalizer })
	_, err = r.client.NetworkingV1().ServiceCIDRs().Update(ctx, c, metav1.UpdateOptions{})
	return 0, controller.IgnoreGone(err)
}

func (r *ranges) setCondition(ctx context.Context, c *networkingv1.ServiceCIDR, want metav1.Condition) error {
	c = withCondition(c, want)
	if c == nil {
		return nil
	}
	_, err := r.client.NetworkingV1().ServiceCIDRs().UpdateStatus(ctx, c, metav1.UpdateOptions{})
	if err = controller.IgnoreGone(err); err != nil {
		return fmt.Errorf("set condition of ServiceCIDR %s: %w", c.Name, err)
	}
	return nil
}
