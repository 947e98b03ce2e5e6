package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/tests/bench/measure"
)

// hollow measures a control plane with many nodes, which one process plays for
// both systems alike: agents without their kernel. The nodes' Leases, statuses
// and watches are those of real ones; what the process itself uses does not count.
func (b *bench) hollow(ctx context.Context, _ *cluster) error {
	return b.with(ctx, plane, func(ctx context.Context, c *cluster) error {
		nodes, pods := b.options.hollow, b.options.pods
		if err := letNodesProxy(ctx, c); err != nil {
			return err
		}
		start := time.Now()
		before, err := c.used()
		if err != nil {
			return err
		}
		if err := c.aside("hollow", filepath.Join(b.options.bin, "shoal-agent"), "--hollow", strconv.Itoa(nodes),
			"--hollow-services", "-1", "--kubeconfig", c.kubeconfig,
			"--node-ip", c.address); err != nil {
			return err
		}
		if err := poll(ctx, 10*time.Minute, func() error { return allReady(ctx, c, nodes) }); err != nil {
			return err
		}
		took := time.Since(start)
		after, err := c.used()
		if err != nil {
			return err
		}
		when := fmt.Sprintf("%d simulated nodes", nodes)
		b.record.cost(when+", until all are Ready", "s", took.Seconds())
		b.record.cost(when+", until all are Ready: CPU", "ms a node", measure.Ms(after-before)/float64(nodes))
		if err := b.atRest(ctx, c, when); err != nil {
			return err
		}
		when += fmt.Sprintf(" with %d pods", pods)
		if err := b.populate(ctx, c, pods, when); err != nil {
			return err
		}
		return b.atRest(ctx, c, when)
	})
}

// letNodesProxy lets nodes read what a proxy needs: an agent is both, upstream's
// nodes have kube-proxy with a name of its own.
func letNodesProxy(ctx context.Context, c *cluster) error {
	_, err := c.client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "peer-bench-nodes"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-proxier"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "system:nodes"}},
	}, metav1.CreateOptions{})
	return err
}

func (b *bench) atRest(ctx context.Context, c *cluster, when string) error {
	if err := sleep(ctx, afterEffects); err != nil {
		return err
	}
	if err := b.idleCPU(ctx, c, when); err != nil {
		return err
	}
	return b.weigh(c, when, true)
}

func allReady(ctx context.Context, c *cluster, n int) error {
	list, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	ready := 0
	for i := range list.Items {
		if takesPods(&list.Items[i]) && len(list.Items[i].Spec.Taints) == 0 {
			ready++
		}
	}
	if ready < n {
		return fmt.Errorf("%d of %d nodes are Ready", ready, n)
	}
	return nil
}

// populate creates pods and waits until all run.
func (b *bench) populate(ctx context.Context, c *cluster, n int, what string) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fleetNS}}
	if _, err := c.client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := poll(ctx, time.Minute, func() error {
		_, err := c.client.CoreV1().ServiceAccounts(fleetNS).Get(ctx, "default", metav1.GetOptions{})
		return err
	}); err != nil {
		return err
	}
	before, err := c.used()
	if err != nil {
		return err
	}
	f := &fleet{cluster: c}
	took, err := f.bring(ctx, n, shape{name: "hollow", spec: func(*corev1.Pod) {}},
		func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	if err != nil {
		return err
	}
	after, err := c.used()
	if err != nil {
		return err
	}
	b.record.cost(what+", until all run", "s", took.Seconds())
	b.record.cost(what+", until all run: CPU", "ms a pod", measure.Ms(after-before)/float64(n))
	return nil
}
