package gatewaystream

import (
	"context"
	"log/slog"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdfake "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/fake"
	crdfactory "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	gatewayfake "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned/fake"

	"github.com/shoal-project/shoal/coordinator/gateway"
	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.Check(m) }

// A coordinator that starts tells nodes of nothing before it has read the classes: "none" would
// end what they serve, and delete Services.
func TestFirstWord(t *testing.T) {
	classes := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "gatewayclasses.gateway.networking.k8s.io"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group:    gatewayv1.GroupName,
			Names:    apiextensionsv1.CustomResourceDefinitionNames{Plural: "gatewayclasses"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true}},
		},
	}
	classes.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{
		{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue}}
	crds := crdfactory.NewSharedInformerFactory(crdfake.NewClientset(classes), 0)
	definitions := crds.Apiextensions().V1().CustomResourceDefinitions().Informer()
	gateways := gatewayfake.NewClientset(&gatewayv1.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: "shoal"},
		Spec: gatewayv1.GatewayClassSpec{ControllerName: gateway.Controller}})
	gateways.PrependReactor("list", "gatewayclasses", func(clienttesting.Action) (bool, runtime.Object, error) {
		time.Sleep(10 * gather) // as when many coordinators' clients ask at once
		return false, nil, nil
	})
	client := fake.NewClientset()
	factory := informers.NewSharedInformerFactory(client, 0)
	h := New(Config{Client: client, Gateways: gateways, Informers: factory,
		Definitions: func() cache.SharedIndexInformer { return definitions },
		Log:         slog.New(slog.NewTextHandler(t.Output(), nil))})
	factory.Networking().V1().IngressClasses().Informer()
	ctx, cancel := context.WithCancel(t.Context())
	start := func() { factory.Start(ctx.Done()) }
	start()
	ran := make(chan error, 1)
	crds.Start(ctx.Done())
	go func() { ran <- h.Run(ctx, start) }()
	defer func() {
		cancel()
		factory.Shutdown()
		crds.Shutdown()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	}()
	for range 600 {
		h.mu.Lock()
		told, plan := h.told, h.plan
		h.mu.Unlock()
		if told != nil {
			if plan == nil || len(plan.Classes) != 1 {
				t.Errorf("the first word is of %+v", plan)
			}
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("nothing was told")
}
