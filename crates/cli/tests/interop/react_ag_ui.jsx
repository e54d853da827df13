// A page with assistant-ui over AG-UI, as its documentation has it: a chat, the calls of tools, and a button for each interrupt.
import { createRoot } from 'react-dom/client';
import { AssistantRuntimeProvider, ComposerPrimitive, MessagePrimitive, ThreadPrimitive } from '@assistant-ui/react';
import { HttpAgent } from '@ag-ui/client';
import { useAgUiInterrupts, useAgUiRuntime, useAgUiState, useAgUiSubmitInterruptResponses } from '@assistant-ui/react-ag-ui';

const agent = new HttpAgent({ url: '/agui/clerk', threadId: 'monday' });

const Call = ({ toolName, argsText, result }) => (
    <p className="call">{`${toolName} ${argsText} ${result === undefined ? 'open' : JSON.stringify(result)}`}</p>
);
const Text = ({ text }) => <p className="text">{text}</p>;
const Message = () => (
    <MessagePrimitive.Root className="message">
        <MessagePrimitive.Parts components={{ Text, tools: { Fallback: Call } }} />
    </MessagePrimitive.Root>
);
const Interrupts = () => {
    const [interrupts, submit] = [useAgUiInterrupts(), useAgUiSubmitInterruptResponses()];
    const decide = (interrupt, payload) => submit([{ interruptId: interrupt.id, status: 'resolved', payload }]);
    return interrupts.map((interrupt) => (
        <p key={interrupt.id} className="interrupt">
            {interrupt.message}
            <button onClick={() => decide(interrupt, { approved: true })}>Approve</button>
            <button onClick={() => decide(interrupt, { approved: false, reason: 'too dear' })}>Reject</button>
        </p>
    ));
};
const State = () => <p id="state">{JSON.stringify(useAgUiState() ?? null)}</p>;
const Page = () => {
    const runtime = useAgUiRuntime({ agent, onError: (error) => { document.title = `failed: ${error.message}`; } });
    return (
        <AssistantRuntimeProvider runtime={runtime}>
            <ThreadPrimitive.Root>
                <ThreadPrimitive.Messages components={{ Message }} />
                <Interrupts />
                <State />
                <ComposerPrimitive.Root>
                    <ComposerPrimitive.Input />
                    <ComposerPrimitive.Send>Send</ComposerPrimitive.Send>
                </ComposerPrimitive.Root>
            </ThreadPrimitive.Root>
        </AssistantRuntimeProvider>
    );
};
createRoot(document.getElementById('root')).render(<Page />);
