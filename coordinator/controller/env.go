package controller

import (
	"log/slog"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
)

// Env is what every controller is built from. Client and Informers may be in
// process or HTTP; a controller cannot tell.
type Env struct {
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	// Recorder returns the recorder that writes events as component
	// ("deployment-controller").
	Recorder func(component string) record.EventRecorder
	Log      *slog.Logger
}
