// Pages opened from disk may not start workers, which the search needs. There, a frame without content
// runs the worker's script instead; on a server this file does nothing.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      const waiting = [];
      this.postMessage = (data) => waiting.push(data);
      this.terminate = () => frame.remove();
      document.body.append(frame);
      const inside = frame.contentWindow;
      // The worker answers with postMessage(data), as in a real worker.
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      const script = inside.document.createElement("script");
      script.src = new URL(url, location.href).href;
      script.onload = () => {
        this.postMessage = (data) => inside.dispatchEvent(new inside.MessageEvent("message", { data }));
        for (const data of waiting) this.postMessage(data);
      };
      script.onerror = () => this.dispatchEvent(new Event("error"));
      inside.document.body.append(script);
    }
  };
}
