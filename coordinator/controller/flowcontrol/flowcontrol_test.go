package flowcontrol

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/shoal-project/shoal/coordinator/controller"
	"log/slog"
)

// The objects of every cluster exist and come back when deleted; others are
// left alone.
func TestKeepsObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		mine := &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}
		mine.Spec.PriorityLevelConfiguration.Name = "nowhere"
		client := fake.NewClientset(mine)
		factory := informers.NewSharedInformerFactory(client, 0)
		loop, err := New(controller.Env{Client: client, Informers: factory, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		factory.Start(ctx.Done())
		done := make(chan error, 1)
		go func() { done <- loop.Run(ctx) }()
		time.Sleep(time.Second)
		schemas := client.FlowcontrolV1().FlowSchemas()
		for _, s := range append(bootstrap.MandatoryFlowSchemas, bootstrap.SuggestedFlowSchemas...) {
			got, err := schemas.Get(ctx, s.Name, metav1.GetOptions{})
			if err != nil || got.Spec.PriorityLevelConfiguration != s.Spec.PriorityLevelConfiguration {
				t.Errorf("%s: %v %+v", s.Name, err, got)
			}
		}
		got, err := schemas.Get(ctx, "mine", metav1.GetOptions{})
		if err != nil || got.Annotations != nil {
			t.Errorf("mine: %v %+v", err, got)
		}
		levels := client.FlowcontrolV1().PriorityLevelConfigurations()
		if err := levels.Delete(ctx, "workload-low", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if _, err := levels.Get(ctx, "workload-low", metav1.GetOptions{}); apierrors.IsNotFound(err) {
			t.Error("a suggested level stayed deleted")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		factory.Shutdown()
	})
}

func TestFollows(t *testing.T) {
	for name, c := range map[string]struct {
		annotation string
		generation int64
		want       bool
	}{"new": {"", 1, true}, "changed": {"", 2, false}, "yes": {"true", 5, true}, "no": {"false", 1, false}} {
		m := &metav1.ObjectMeta{Generation: c.generation,
			Annotations: map[string]string{flowcontrolv1.AutoUpdateAnnotationKey: c.annotation}}
		if follows(m) != c.want {
			t.Error(name)
		}
	}
}
