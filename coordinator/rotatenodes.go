package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/shoal-project/shoal/agent/trust"
	"github.com/shoal-project/shoal/coordinator/pki"
)

const (
	// askNode bounds one node's answer, askAtOnce how many are asked at a time.
	askNode, askAtOnce = 15 * time.Second, 32
	// nodesTime is how long nodes may take to follow: each asks for two certificates.
	nodesTime = time.Minute
	nodesWait = time.Second
)

// nodesFollow returns an error while nodes do not believe the CAs of now or, when the
// new one signs, have not let it sign their certificates.
func nodesFollow(ctx context.Context, client kubernetes.Interface, dir pki.Dir, at pki.Phase) error {
	files, err := dir.ReadFiles(pki.CAFile)
	if err != nil {
		return err
	}
	trusted, err := files.Trusted()
	if err != nil {
		return err
	}
	var want []string
	for _, c := range trusted {
		want = append(want, trust.Print(c))
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	behind := make([]error, len(nodes.Items))
	var wg sync.WaitGroup
	slots := make(chan struct{}, askAtOnce)
	for i := range nodes.Items {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if err := nodeFollows(ctx, client, &nodes.Items[i], want, at == pki.Signing); err != nil {
				behind[i] = fmt.Errorf("node %s: %w", nodes.Items[i].Name, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(behind...)
}

func nodeFollows(ctx context.Context, client kubernetes.Interface, node *corev1.Node, want []string, signed bool) error {
	ctx, cancel := context.WithTimeout(ctx, askNode)
	defer cancel()
	data, err := client.CoreV1().RESTClient().Post().Resource("nodes").Name(node.Name).SubResource("proxy").
		Suffix(trust.Path).DoRaw(ctx)
	if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
		return errors.New("its agent is of an earlier version, or another kubelet")
	}
	if err != nil {
		return fmt.Errorf("it does not answer: %w", err)
	}
	var r trust.Report
	if err := json.Unmarshal(data, &r); err != nil {
		return fmt.Errorf("its answer is not understood: %w", err)
	}
	switch {
	case !slices.Equal(r.Trusted, want):
		return errors.New("it believes other CAs")
	case signed && !r.Client:
		return errors.New("it has no client certificate of the new CA yet")
	case signed && !r.Serving:
		return errors.New("it has no serving certificate of the new CA yet")
	}
	return nil
}

// waitForNodes gives nodes the time to follow.
func waitForNodes(ctx context.Context, client kubernetes.Interface, dir pki.Dir, at pki.Phase) error {
	deadline := time.Now().Add(nodesTime)
	for {
		err := nodesFollow(ctx, client, dir, at)
		if err == nil || time.Now().After(deadline) {
			if err != nil {
				err = fmt.Errorf("nodes are behind; run it again when they are there, or have deleted their Nodes:\n%w",
					err)
			}
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(nodesWait):
		}
	}
}
