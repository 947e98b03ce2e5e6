package main

import (
	"bytes"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/tests/bench/measure"
	"github.com/shoal-project/shoal/tests/harness"
)

// failLimit bounds the wait for each consequence of a node's failure.
const failLimit = 3 * time.Minute

// fail measures what follows when the second of two nodes goes off the network.
func (b *bench) fail(ctx context.Context, c *cluster) error {
	lost, err := b.twoEndpoints(ctx, c)
	if err != nil {
		return err
	}
	if err := sleep(ctx, afterEffects/3); err != nil {
		return err
	}
	start := time.Now()
	if err := c.cut(); err != nil {
		return err
	}
	waits := []struct {
		what string
		over func(context.Context, *cluster, string) error
	}{
		{"node off the network, until NotReady", isNotReady},
		{"node off the network, until its endpoint is not ready in the API", isNotServing},
		{"node off the network, until the other node sends it no traffic", isNotProgrammed},
	}
	for deadline := start.Add(failLimit); len(waits) > 0; {
		for i := len(waits) - 1; i >= 0; i-- {
			w := waits[i]
			if err := w.over(ctx, c, lost); err == nil {
				b.record.cost(w.what, "s", time.Since(start).Seconds())
				waits = append(waits[:i], waits[i+1:]...)
			} else if time.Now().After(deadline) {
				return fmt.Errorf("%s: not within %s: %w", w.what, failLimit, err)
			}
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// twoEndpoints makes a Service with a pod on each node and returns the address
// of that on the second.
func (b *bench) twoEndpoints(ctx context.Context, c *cluster) (string, error) {
	labels := map[string]string{"app": "fail"}
	_, err := c.client.CoreV1().Services(measure.Namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "fail"},
		Spec:       corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: 8080}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	if err := poll(ctx, time.Minute, func() error { return nodeReady(ctx, c.client, nodeTwo) }); err != nil {
		return "", err
	}
	for _, node := range []string{nodeOne, nodeTwo} {
		_, err := c.client.CoreV1().Pods(measure.Namespace).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "fail-" + node, Labels: labels},
			Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "localhost/hello:1"}}},
		}, metav1.CreateOptions{})
		if err != nil {
			return "", err
		}
	}
	var address string
	err = poll(ctx, time.Minute, func() error {
		pod, err := c.client.CoreV1().Pods(measure.Namespace).Get(ctx, "fail-"+nodeTwo, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if address = pod.Status.PodIP; address == "" {
			return fmt.Errorf("pod on %s: %s", nodeTwo, pod.Status.Phase)
		}
		if isNotServing(ctx, c, address) == nil {
			return fmt.Errorf("%s is not in the slice", address)
		}
		if isNotProgrammed(ctx, c, address) == nil {
			return fmt.Errorf("%s is not in the other node's nftables", address)
		}
		return nil
	})
	return address, err
}

func isNotReady(ctx context.Context, c *cluster, _ string) error {
	node, err := c.client.CoreV1().Nodes().Get(ctx, nodeTwo, metav1.GetOptions{})
	if err == nil && takesPods(node) {
		err = fmt.Errorf("node %s is Ready", nodeTwo)
	}
	return err
}

func isNotServing(ctx context.Context, c *cluster, address string) error {
	list, err := c.client.DiscoveryV1().EndpointSlices(measure.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=fail"})
	if err != nil {
		return err
	}
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			if e.Addresses[0] == address && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
				return fmt.Errorf("%s is ready in %s", address, s.Name)
			}
		}
	}
	return nil
}

// isNotProgrammed looks for the address in the first node's packet filter. Both
// systems use nftables.
func isNotProgrammed(_ context.Context, c *cluster, address string) error {
	out, err := harness.Command(c.netns, "nft", "list", "ruleset").Output()
	if err != nil {
		return fmt.Errorf("nft: %w", err)
	}
	if bytes.Contains(out, []byte(address+" ")) || bytes.Contains(out, []byte(address+":")) ||
		bytes.Contains(out, []byte(address+"\n")) {
		return fmt.Errorf("%s is programmed", address)
	}
	return nil
}
