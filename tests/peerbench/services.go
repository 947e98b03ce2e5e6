package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/tests/bench/measure"
	"github.com/shoal-project/shoal/tests/harness"
)

// The step services creates Services without pods: each has one endpoint, a
// listener on the node. What is measured is what a client on the node sees.
const (
	portBefore, portAfter = 9001, 9002
	changes               = 20
	dialTimeout           = 50 * time.Millisecond
)

// services measures, on a fresh cluster for each number of Services.
func (b *bench) services(ctx context.Context, _ *cluster) error {
	var errs []error
	for s := range strings.SplitSeq(b.options.services, ",") {
		n, err := strconv.Atoi(s)
		if err != nil {
			return fmt.Errorf("-services: %w", err)
		}
		errs = append(errs,
			b.with(ctx, oneNode, func(ctx context.Context, c *cluster) error { return b.program(ctx, c, n) }))
	}
	return errors.Join(errs...)
}

// program measures until n Services answer, and until changes of one do.
func (b *bench) program(ctx context.Context, c *cluster, n int) error {
	for _, port := range []int{portBefore, portAfter} {
		l, err := listen(c, port)
		if err != nil {
			return err
		}
		defer l.Close()
	}
	before, err := c.used()
	if err != nil {
		return err
	}
	start := time.Now()
	addresses := make([]string, n)
	if _, err := parallel(ctx, n, writers, func(i int) (err error) {
		addresses[i], err = createService(ctx, c, i)
		return err
	}); err != nil {
		return fmt.Errorf("create Services: %w", err)
	}
	created := time.Since(start)
	if err := allAnswer(ctx, c, addresses); err != nil {
		return err
	}
	took := time.Since(start)
	after, err := c.used()
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%d Services", n)
	b.record.cost(what+", created and answering", "s", took.Seconds())
	b.record.cost(what+", answering after the last was created", "s", (took - created).Seconds())
	b.record.cost(what+": CPU", "ms a Service", measure.Ms(after-before)/float64(n))
	if err := sleep(ctx, afterEffects/3); err != nil {
		return err
	}
	if err := b.weigh(c, what, true); err != nil {
		return err
	}
	return b.change(ctx, c, addresses)
}

// change moves endpoints of single Services to the other port.
func (b *bench) change(ctx context.Context, c *cluster, addresses []string) error {
	var took measure.Sample
	before, err := c.used()
	if err != nil {
		return err
	}
	for k := range changes {
		i := k * len(addresses) / changes
		start := time.Now()
		slice := newSlice(c, i, portAfter)
		if _, err := c.client.DiscoveryV1().EndpointSlices(measure.Namespace).Update(ctx, slice,
			metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("change an endpoint: %w", err)
		}
		if err := until(ctx, c, addresses[i], portAfter); err != nil {
			return err
		}
		took = append(took, measure.Ms(time.Since(start)))
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	after, err := c.used()
	if err != nil {
		return err
	}
	what := fmt.Sprintf("one endpoint's change among %d Services", len(addresses))
	b.record.cost(what, "ms", took.Median())
	b.record.cost(what+", slowest", "ms", took.Max())
	b.record.cost(what+": CPU", "ms a change", measure.Ms(after-before)/changes)
	return nil
}

// listen answers every connection to a port of the node with the port.
func listen(c *cluster, port int) (net.Listener, error) {
	var l net.Listener
	err := harness.Inside(c.netns, func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(c.address, strconv.Itoa(port)))
		return err
	})
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			_, _ = io.WriteString(conn, strconv.Itoa(port)) // the client sees what is missing
			_ = conn.Close()
		}
	}()
	return l, nil
}

func serviceName(i int) string { return "service-" + strconv.Itoa(i) }

// createService returns the Service's address.
func createService(ctx context.Context, c *cluster, i int) (string, error) {
	s, err := c.client.CoreV1().Services(measure.Namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: serviceName(i)},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	_, err = c.client.DiscoveryV1().EndpointSlices(measure.Namespace).Create(ctx,
		newSlice(c, i, portBefore), metav1.CreateOptions{})
	return net.JoinHostPort(s.Spec.ClusterIP, "80"), err
}

func newSlice(c *cluster, i, port int) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: serviceName(i), Labels: map[string]string{
			discoveryv1.LabelServiceName: serviceName(i), discoveryv1.LabelManagedBy: "peer-bench",
		}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{c.address}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}}},
		Ports: []discoveryv1.EndpointPort{
			{Name: ptr.To(""), Port: ptr.To(int32(port)), Protocol: ptr.To(corev1.ProtocolTCP)}},
	}
}

// allAnswer connects to each Service in turn, to each until it answers.
func allAnswer(ctx context.Context, c *cluster, addresses []string) error {
	for i, a := range addresses {
		if err := until(ctx, c, a, portBefore); err != nil {
			return fmt.Errorf("%d of %d Services answer: %w", i, len(addresses), err)
		}
	}
	return nil
}

// until connects to a Service from the node until the listener of a port
// answers.
func until(ctx context.Context, c *cluster, address string, port int) error {
	return harness.Inside(c.netns, func() error {
		var last error
		for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); {
			answer, err := ask(address)
			if err == nil && answer == strconv.Itoa(port) {
				return nil
			}
			last = err
			if err := sleep(ctx, time.Millisecond); err != nil {
				return err
			}
		}
		return fmt.Errorf("%s does not answer from port %d: %w", address, port, last)
	})
}

func ask(address string) (string, error) {
	conn, err := net.DialTimeout("tcp", address, dialTimeout)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		return "", err
	}
	data, err := io.ReadAll(conn)
	return string(data), err
}
