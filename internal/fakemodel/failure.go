package fakemodel

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// Failure is a refusal of the whole request in the dialect's own status, error body and words (core M28). As a step
// it ends the exchange and must come first.
type Failure string

// The failures. The same one may have different statuses in different dialects: DeepSeek and OpenRouter answer an
// unknown model with 400, and only they answer an exhausted account with 402.
const (
	BadRequest    Failure = "bad-request"
	ContextLength Failure = "context-length"
	Unauthorized  Failure = "unauthorized"
	Forbidden     Failure = "forbidden"
	Quota         Failure = "quota"
	UnknownModel  Failure = "unknown-model"
	TooLarge      Failure = "too-large"
	RateLimited   Failure = "rate-limited"
	ServerError   Failure = "server-error"
	Unavailable   Failure = "unavailable"
)

// Failures returns all failures.
func Failures() []Failure {
	return []Failure{BadRequest, ContextLength, Unauthorized, Forbidden, Quota, UnknownModel, TooLarge, RateLimited, ServerError, Unavailable}
}

// With returns the failure with a response header, such as Retry-After, added.
func (f Failure) With(name, value string) Step { return failed{f, map[string]string{name: value}} }

type failed struct {
	failure Failure
	header  map[string]string
}

func (f Failure) play(st *stream) error { return failed{failure: f}.play(st) }

func (f failed) play(st *stream) error {
	fault, ok := st.d.fault(f.failure)
	if !ok {
		return mistake(fmt.Sprintf("unknown failure %q", string(f.failure)))[0].play(st)
	}
	body := string(appendJSON(nil, fault.body(st.d, st.req.Model)))
	return Status{Code: fault.status, Header: f.header, Body: body}.play(st)
}

// fault is what a failure looks like in one dialect; {model} in the message stands for the requested model.
type fault struct {
	status  int
	kind    string // error.type
	code    string // error.code; empty means the dialect's choice
	message string
}

// refuse is a 400 with those words, for a request that is wrong in itself.
func refuse(d Dialect, message string) Step {
	f := fault{http.StatusBadRequest, "invalid_request_error", "", message}
	return Status{Code: f.status, Body: string(appendJSON(nil, f.body(d, "")))}
}

// failureFor returns the usual fault behind a status.
func (d Dialect) failureFor(status int) fault {
	for _, f := range []Failure{BadRequest, Unauthorized, Forbidden, UnknownModel, TooLarge, RateLimited, ServerError, Unavailable} {
		if fault, ok := d.fault(f); ok && fault.status == status {
			return fault
		}
	}
	switch status {
	case http.StatusPaymentRequired:
		return fault{status, "insufficient_quota", "insufficient_quota", "Insufficient Balance"}
	case http.StatusNotFound:
		return fault{status, "not_found_error", "", "Not Found"}
	default:
		return fault{status, "api_error", "", http.StatusText(status)}
	}
}

// fault returns the dialect's form of a failure: its own where it has one, OpenAI's otherwise.
func (d Dialect) fault(f Failure) (fault, bool) {
	own := fault{}
	switch d {
	case DeepSeek:
		own = deepSeekFault(f)
	case OpenRouter:
		own = openRouterFault(f)
	case Ollama:
		own = ollamaFault(f)
	case VLLM:
		own = vllmFault(f)
	case LlamaCpp:
		own = llamaCppFault(f)
	case messagesWire:
		own = messagesFault(f)
	case OpenAI:
	}
	if own.status == 0 {
		own = openAIFault(f)
	}
	return own, own.status != 0
}

func openAIFault(f Failure) fault {
	const invalid = "invalid_request_error"
	switch f {
	case BadRequest:
		return fault{400, invalid, "invalid_value", "Invalid value for 'messages'."}
	case ContextLength:
		return fault{400, invalid, "context_length_exceeded", "This model's maximum context length is 128000 tokens. However, your messages resulted in 130210 tokens. Please reduce the length of the messages."}
	case Unauthorized:
		return fault{401, invalid, "invalid_api_key", "Incorrect API key provided."}
	case Forbidden:
		return fault{403, "request_forbidden", "unsupported_country_region_territory", "Country, region, or territory not supported"}
	case Quota:
		return fault{429, "insufficient_quota", "insufficient_quota", "You exceeded your current quota, please check your plan and billing details."}
	case UnknownModel:
		return fault{404, invalid, "model_not_found", "The model `{model}` does not exist or you do not have access to it."}
	case TooLarge:
		return fault{413, invalid, "", "Request body too large."}
	case RateLimited:
		return fault{429, "requests", "rate_limit_exceeded", "Rate limit reached for {model} on requests per min (RPM): Limit 3, Used 3, Requested 1."}
	case ServerError:
		return fault{500, "server_error", "", "The server had an error while processing your request."}
	case Unavailable:
		return fault{503, "server_error", "", "The engine is currently overloaded, please try again later."}
	default:
		return fault{}
	}
}

func deepSeekFault(f Failure) fault {
	const invalid = "invalid_request_error"
	switch f {
	case ContextLength:
		return fault{400, invalid, invalid, "This model's maximum context length is 131072 tokens. However, you requested 140000 tokens (139000 in the messages, 1000 in the completion)."}
	case Unauthorized:
		return fault{401, "authentication_error", invalid, "Authentication Fails, Your api key is invalid"}
	case Quota:
		return fault{402, "unknown_error", invalid, "Insufficient Balance"}
	case UnknownModel:
		return fault{400, invalid, invalid, "Model Not Exist"}
	default:
		return fault{}
	}
}

func openRouterFault(f Failure) fault {
	switch f {
	case ContextLength:
		return fault{400, "", "", "This endpoint's maximum context length is 131072 tokens. However, you requested about 140000 tokens."}
	case Unauthorized:
		return fault{401, "", "", "No auth credentials found"}
	case Quota:
		return fault{402, "", "", "Insufficient credits. Add more to go on."}
	case UnknownModel:
		return fault{400, "", "", "{model} is not a valid model ID"}
	default:
		return fault{}
	}
}

func ollamaFault(f Failure) fault {
	switch f {
	case ContextLength:
		return fault{400, "invalid_request_error", "", "the input length exceeds the context length"}
	case UnknownModel:
		return fault{404, "not_found_error", "", "model '{model}' not found"}
	default:
		return fault{}
	}
}

func vllmFault(f Failure) fault {
	switch f {
	case BadRequest:
		return fault{400, "BadRequestError", "", "the messages are not valid"}
	case ContextLength:
		return fault{400, "BadRequestError", "", "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens. Please reduce the length of the messages."}
	case UnknownModel:
		return fault{404, "NotFoundError", "", "The model `{model}` does not exist."}
	case ServerError:
		return fault{500, "InternalServerError", "", "EngineCore encountered an issue."}
	default:
		return fault{}
	}
}

func llamaCppFault(f Failure) fault {
	switch f {
	case ContextLength:
		return fault{400, "exceed_context_size_error", "", "the request exceeds the available context size, try increasing it"}
	case Unauthorized:
		return fault{401, "authentication_error", "", "Invalid API Key"}
	case Unavailable:
		return fault{503, "unavailable_error", "", "Loading model"}
	default:
		return fault{}
	}
}

// body is the JSON of an error response.
func (f fault) body(d Dialect, model string) object {
	message := strings.ReplaceAll(f.message, "{model}", model)
	switch d {
	case messagesWire:
		return object{{"type", "error"}, {"error", object{{"type", f.kind}, {"message", message}}}}
	case OpenRouter:
		return object{{"error", object{{"message", message}, {"code", f.status}}}}
	case VLLM:
		if f.status == http.StatusUnauthorized {
			return object{{"error", "Unauthorized"}}
		}
		return object{{"error", object{{"message", message}, {"type", f.kind}, {"param", nil}, {"code", f.status}}}}
	case LlamaCpp:
		return object{{"error", object{{"code", f.status}, {"message", message}, {"type", f.kind}}}}
	default:
		var code any
		switch {
		case f.code != "":
			code = f.code
		case d == DeepSeek:
			code = strconv.Itoa(f.status)
		}
		return object{{"error", object{{"message", message}, {"type", f.kind}, {"param", nil}, {"code", code}}}}
	}
}
